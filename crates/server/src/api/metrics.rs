//! What Prometheus reads. Needs no token: it holds counts and routes, no names and no content; who
//! must not see even that is kept out by the address that the server listens on.

use crate::call::{Access, Answer, Call, Operation};
use crate::error::Result;
use http::{Method, StatusCode};

pub(super) fn operations() -> Vec<Operation> {
    vec![
        Operation::new(
            (Method::GET, "/metrics"),
            "metrics",
            Access::Anybody,
            "Counts and times in the Prometheus text format.",
            |call| Box::pin(metrics(call)),
        )
        .gives_nothing(200),
    ]
}

async fn metrics(call: Call) -> Result<Answer> {
    let mut text = (call.shared.metrics)();
    if !text.is_empty() && !text.ends_with('\n') {
        text.push('\n');
    }
    call.shared.traffic.render(&mut text);
    call.shared.standing.render(&*call.shared.store, call.now, &mut text).await;
    let mut answer = Answer::raw(StatusCode::OK, text.into());
    answer.content_type = "text/plain; version=0.0.4; charset=utf-8";
    Ok(answer)
}
