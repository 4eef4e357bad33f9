//! The API description: up to date in the repository, and correct.

use std::path::Path;

use hyper::{Method, StatusCode};
use serde_json::Value;

use crate::fixture::Fixture;

/// Its file in the repository.
const FILE: &str = "../../docs/openapi.json";

/// The description as the daemon serves it.
pub(crate) struct Description(Value);

impl Description {
    pub(crate) fn new() -> Self {
        Self(serde_json::from_str(&tarpon_daemon::description()).unwrap())
    }

    /// Checks that this response to this request is described. Requests for unknown paths are not.
    pub(crate) fn check(&self, method: &Method, path: &str, status: StatusCode, body: &Value) {
        let path = path.split('?').next().unwrap();
        let paths = self.0["paths"].as_object().unwrap();
        let Some(found) = paths.iter().find(|(template, _)| fits(template, path)) else { return };
        let Some(operation) = found.1.get(method.as_str().to_lowercase()) else { return };
        let responses = &operation["responses"];
        let response = responses.get(status.as_str()).unwrap_or(&responses["default"]);
        assert!(response.is_object(), "{method} {path} has status {status}, which is not described");
        match response["content"].get("application/json") {
            Some(content) => self.fit(&content["schema"], body, &format!("{method} {path}")),
            None => assert_eq!(*body, Value::Null, "{method} {path}: a body that is not described"),
        }
    }

    /// Checks a value against its schema. Supports the parts of JSON Schema that our schemas use, and rejects the rest.
    fn fit(&self, schema: &Value, value: &Value, at: &str) {
        const KNOWN: [&str; 16] = [
            "type",
            "properties",
            "required",
            "items",
            "enum",
            "oneOf",
            "allOf",
            "description",
            "format",
            "minimum",
            "example",
            "default",
            "additionalProperties",
            "maximum",
            "examples",
            "title",
        ];
        if let Some(name) = schema["$ref"].as_str() {
            let name = name.strip_prefix("#/components/schemas/").unwrap();
            return self.fit(&self.0["components"]["schemas"][name], value, at);
        }
        let words = schema.as_object().unwrap();
        let odd = words.keys().find(|word| !KNOWN.contains(&word.as_str()));
        assert!(odd.is_none(), "{at}: unsupported schema keyword {odd:?}");
        if let Some(choices) = schema["oneOf"].as_array() {
            let fits = |choice: &&Value| {
                std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| self.fit(choice, value, at))).is_ok()
            };
            assert_eq!(choices.iter().filter(fits).count(), 1, "{at}: {value}");
        }
        for all in schema["allOf"].as_array().into_iter().flatten() {
            self.fit(all, value, at);
        }
        let types: Vec<&str> = match &schema["type"] {
            Value::String(name) => vec![name],
            Value::Array(names) => names.iter().map(|name| name.as_str().unwrap()).collect(),
            _ => Vec::new(),
        };
        let is = |name: &&str| match *name {
            "null" => value.is_null(),
            "boolean" => value.is_boolean(),
            "integer" => value.is_i64() || value.is_u64(),
            "number" => value.is_number(),
            "string" => value.is_string(),
            "array" => value.is_array(),
            "object" => value.is_object(),
            other => panic!("{at}: no type {other}"),
        };
        assert!(types.is_empty() || types.iter().any(is), "{at}: {value} is none of {types:?}");
        if let Some(values) = schema["enum"].as_array() {
            assert!(values.contains(value), "{at}: {value} is none of {values:?}");
        }
        for item in value.as_array().into_iter().flatten() {
            self.fit(&schema["items"], item, &format!("{at}[]"));
        }
        let (Some(object), Some(properties)) = (value.as_object(), schema["properties"].as_object()) else { return };
        for name in schema["required"].as_array().into_iter().flatten() {
            assert!(object.contains_key(name.as_str().unwrap()), "{at} has no {name}");
        }
        for (name, value) in object {
            let schema = properties.get(name).unwrap_or_else(|| panic!("{at}.{name} is not described"));
            self.fit(schema, value, &format!("{at}.{name}"));
        }
    }
}

fn fits(template: &str, path: &str) -> bool {
    let (mut template, mut path) = (template.split('/'), path.split('/'));
    loop {
        match (template.next(), path.next()) {
            (None, None) => return true,
            (Some(wanted), Some(found)) if wanted == found || wanted.starts_with('{') => {}
            _ => return false,
        }
    }
}

#[test]
fn the_description_in_the_repository_is_current() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join(FILE);
    let now = tarpon_daemon::description();
    if std::env::var_os("UPDATE_DESCRIPTION").is_some() {
        std::fs::write(&file, &now).unwrap();
    }
    assert!(
        std::fs::read_to_string(&file).unwrap() == now,
        "UPDATE_DESCRIPTION=1 cargo test -p tarpon-daemon updates docs/openapi.json"
    );
}

#[tokio::test]
async fn every_described_operation_exists_and_has_an_id_and_a_summary() {
    let fixture = Fixture::new().await;
    let description = fixture.get("/openapi.json").await;
    let mut names = Vec::new();
    for (path, methods) in description["paths"].as_object().unwrap() {
        for (method, operation) in methods.as_object().unwrap() {
            names.push(operation["operationId"].as_str().unwrap().to_owned());
            assert!(!operation["summary"].as_str().unwrap().is_empty(), "{method} {path}");
            if path == "/v1/events" {
                continue;
            }
            let method = Method::from_bytes(method.to_uppercase().as_bytes()).unwrap();
            let filled = path.replace("{mount}", "none").replace("{name}", "none").replace("{id}", "none");
            let (status, body) = fixture.send(method.clone(), &filled, b"nonsense").await;
            let is_unknown = body["step"] == "find the path";
            assert!(!is_unknown && status != StatusCode::METHOD_NOT_ALLOWED, "{method} {path}: {status} {body}");
        }
    }
    let count = names.len();
    names.sort();
    names.dedup();
    assert_eq!(names.len(), count);
}
