//! What a start prints on standard output: where the API is and, the first time, how to use it.
//!
//! **Invariant:** a token is printed to a terminal only. What a service prints is kept in a journal
//! that more people may read than may use the API.

use crate::cli::{reachable, write};
use crate::config::Config;
use crate::failure::Failure;
use crate::serve::Running;
use crate::token;
use std::io::IsTerminal;
use std::net::SocketAddr;

/// # Errors
/// Standard output cannot be written to.
pub fn print(running: &Running, config: &Config) -> Result<(), Failure> {
    let mut text = String::new();
    if let Some(address) = running.address {
        text.push_str(&format!("posthaste listens on http://{}\n", reachable(address)));
        match (running.first_start, std::io::stdout().is_terminal()) {
            (true, true) => {
                text.push_str(&first_start(address, &running.token(token::LIFETIME)?, config));
            }
            (true, false) => text.push_str(&first_start_unseen(config)),
            (false, _) => {}
        }
    } else {
        text.push_str("posthaste delivers; there is no API in this process\n");
        if let Some(address) = running.metrics {
            text.push_str(&format!("Metrics: http://{}/metrics\n", reachable(address)));
        }
    }
    if config.dev {
        text.push_str("Warning: with --dev, endpoints reach every service on this machine.\n");
    }
    write(text.as_bytes())
}

fn first_start(address: SocketAddr, token: &str, config: &Config) -> String {
    let address = reachable(address);
    let folder = config.data_dir.display();
    format!(
        r#"
This is the first start. Its secret is in {folder}/secrets.toml; keep that file.

API token (shown once; `posthaste token` makes others):

  {token}

Try it:

  curl -X POST http://{address}/api/v1/app \
    -H 'Authorization: Bearer {token}' \
    -H 'Content-Type: application/json' \
    -d '{{"name": "My first application", "uid": "first"}}'

"#
    )
}

fn first_start_unseen(config: &Config) -> String {
    let folder = config.data_dir.display();
    format!(
        "This is the first start; its secret is in {folder}/secrets.toml. `posthaste token \
         --data-dir {folder}` prints a token.\n"
    )
}
