//! The OpenAPI document, made from the operations and the wire types that serve them.

use crate::call::{Access, Answer, Call, Operation};
use crate::error::{ErrorOut, Result, ValidationOut};
use bytes::Bytes;
use http::{Method, StatusCode};
use schemars::generate::SchemaSettings;
use schemars::transform::RecursiveTransform;
use schemars::{Schema, SchemaGenerator};
use serde_json::{Map, Value, json};
use std::sync::Arc;

pub(super) fn operations() -> Vec<Operation> {
    vec![
        Operation::new(
            (Method::GET, "/api/v1/openapi.json"),
            "v1.openapi.get",
            Access::Anybody,
            "This document.",
            |call| Box::pin(get(call)),
        )
        .gives::<serde_json::Map<String, Value>>(200),
    ]
}

async fn get(call: Call) -> Result<Answer> {
    Ok(Answer::raw(StatusCode::OK, call.shared.openapi.clone()))
}

/// OpenAPI 3.1, whose schemas are those of JSON Schema.
pub(crate) fn document(operations: &[Arc<Operation>], version: &str) -> Bytes {
    let mut settings = SchemaSettings::draft2020_12();
    settings.definitions_path = "/components/schemas".into();
    settings.meta_schema = None;
    // A field that may be absent has no default of `null`, which its type may not even allow.
    settings.transforms.push(Box::new(RecursiveTransform(|schema: &mut Schema| {
        if schema.get("default") == Some(&Value::Null) {
            schema.remove("default");
        }
    })));
    let mut schemas = SchemaGenerator::new(settings);
    let mut paths: Map<String, Value> = Map::new();
    for operation in operations {
        let described = describe(operation, &mut schemas);
        let path = paths.entry(operation.path).or_insert_with(|| json!({}));
        if let Some(methods) = path.as_object_mut() {
            methods.insert(operation.method.as_str().to_ascii_lowercase(), described);
        }
    }
    let document = json!({
        "openapi": "3.1.0",
        "info": { "title": "posthaste", "version": version },
        "paths": paths,
        "components": {
            "schemas": schemas.take_definitions(true),
            "securitySchemes": { "HTTPBearer": { "type": "http", "scheme": "bearer" } },
        },
    });
    Bytes::from(document.to_string())
}

fn describe(operation: &Operation, schemas: &mut SchemaGenerator) -> Value {
    let mut described = json!({
        "operationId": operation.id,
        "summary": operation.about,
        "parameters": parameters(operation),
        "responses": responses(operation, schemas),
    });
    if let Some(schema) = operation.body {
        let schema = schema(schemas);
        described["requestBody"] =
            json!({ "required": true, "content": { "application/json": { "schema": schema } } });
    }
    if operation.access != Access::Anybody {
        described["security"] = json!([{ "HTTPBearer": [] }]);
    }
    described
}

fn parameters(operation: &Operation) -> Vec<Value> {
    let of_path = operation.path.split('/').filter_map(|segment| {
        let name = segment.strip_prefix('{')?.strip_suffix('}')?;
        Some(json!({
            "in": "path", "name": name, "required": true, "schema": { "type": "string" },
        }))
    });
    let of_query = operation.query.iter().map(|parameter| {
        json!({
            "in": "query",
            "name": parameter.name,
            "description": parameter.about,
            "schema": { "type": parameter.kind },
        })
    });
    let key = (operation.method == Method::POST).then(|| {
        json!({
            "in": "header",
            "name": "idempotency-key",
            "description": "The same key and request within 24 h give the same answer.",
            "schema": { "type": "string" },
        })
    });
    of_path.chain(of_query).chain(key).collect()
}

fn responses(operation: &Operation, schemas: &mut SchemaGenerator) -> Value {
    let mut responses = Map::new();
    for (status, schema) in &operation.answers {
        let mut response = json!({ "description": "Done." });
        if let Some(schema) = schema {
            let schema = schema(schemas);
            response["content"] = json!({ "application/json": { "schema": schema } });
        }
        responses.insert(status.to_string(), response);
    }
    let refused = schemas.subschema_for::<ErrorOut>();
    let invalid = schemas.subschema_for::<ValidationOut>();
    let statuses: &[(&str, &str)] = match operation.access {
        Access::Anybody => &[("503", "Not now.")],
        _ => &[
            ("400", "Not understood."),
            ("401", "No valid token."),
            ("403", "The token may not do this."),
            ("404", "Not there."),
            ("409", "In conflict with what is there."),
            ("413", "Too large."),
            ("503", "Not now."),
        ],
    };
    for (status, about) in statuses {
        responses.insert(
            (*status).to_owned(),
            json!({
                "description": about,
                "content": { "application/json": { "schema": refused } },
            }),
        );
    }
    if operation.access != Access::Anybody {
        responses.insert(
            "422".to_owned(),
            json!({
                "description": "A field is wrong.",
                "content": { "application/json": { "schema": invalid } },
            }),
        );
    }
    Value::Object(responses)
}
