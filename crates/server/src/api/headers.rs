//! The headers that an endpoint's owner adds to each request.

use super::endpoint::write;
use super::until_fresh;
use crate::call::{Access, Answer, Call, Operation};
use crate::error::{Refusal, Result};
use crate::wire::decode;
use crate::wire::misc::{HeadersIn, HeadersOut, HeadersPatchIn};
use http::Method;
use posthaste_core::endpoint::EndpointHeaders;

const PATH: &str = "/api/v1/app/{app_id}/endpoint/{endpoint_id}/headers";

pub(super) fn operations() -> Vec<Operation> {
    use Access::Application;
    vec![
        Operation::new(
            (Method::GET, PATH),
            "v1.endpoint.get-headers",
            Application,
            "Reads the headers; of those that are secrets only the names.",
            |call| Box::pin(get(call)),
        )
        .gives::<HeadersOut>(200),
        Operation::new(
            (Method::PUT, PATH),
            "v1.endpoint.update-headers",
            Application,
            "Replaces all headers.",
            |call| Box::pin(replace(call)),
        )
        .takes::<HeadersIn>()
        .gives_nothing(204),
        Operation::new(
            (Method::PATCH, PATH),
            "v1.endpoint.patch-headers",
            Application,
            "Sets and removes headers by name, whatever the case.",
            |call| Box::pin(patch(call)),
        )
        .takes::<HeadersPatchIn>()
        .gives_nothing(204),
    ]
}

async fn get(call: Call) -> Result<Answer> {
    let application = call.application().await?;
    let endpoint = call.endpoint(&application).await?;
    let (secret, open): (Vec<_>, Vec<_>) =
        endpoint.headers.iter().partition(|(name, _)| EndpointHeaders::is_sensitive(name));
    Answer::ok(&HeadersOut {
        headers: open.into_iter().map(|(name, value)| (name.into(), value.into())).collect(),
        sensitive: secret.into_iter().map(|(name, _)| name.to_owned()).collect(),
    })
}

async fn replace(call: Call) -> Result<Answer> {
    let application = call.application().await?;
    let input: HeadersIn = decode(&call.body)?;
    let headers = checked(input.headers.0)?;
    until_fresh(|| async {
        let mut endpoint = call.endpoint(&application).await?;
        endpoint.headers = headers.clone();
        write(&call, endpoint).await
    })
    .await?;
    Ok(Answer::nothing())
}

async fn patch(call: Call) -> Result<Answer> {
    let application = call.application().await?;
    let input: HeadersPatchIn = decode(&call.body)?;
    until_fresh(|| async {
        let mut endpoint = call.endpoint(&application).await?;
        let before = endpoint.headers.iter();
        let mut headers: Vec<(String, String)> =
            before.map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
        let without = |headers: &mut Vec<(String, String)>, name: &str| {
            headers.retain(|(other, _)| !other.eq_ignore_ascii_case(name));
        };
        for name in &input.delete_headers {
            without(&mut headers, name);
        }
        for (name, value) in &input.headers.0 {
            without(&mut headers, name);
            if let Some(value) = value {
                headers.push((name.clone(), value.clone()));
            }
        }
        endpoint.headers = checked(headers)?;
        write(&call, endpoint).await
    })
    .await?;
    Ok(Answer::nothing())
}

fn checked(headers: Vec<(String, String)>) -> Result<EndpointHeaders> {
    EndpointHeaders::new(headers).map_err(|error| Refusal::field("headers", error))
}
