//! JSON Schema, as much of it as the API's description uses; an unknown keyword fails the test.

use std::collections::BTreeSet;

use serde_json::{Map, Value};

/// Where the schemas with names are.
const NAMED: &str = "#/components/schemas/";

/// Checks values against the schemas of a document, and notes which properties it saw.
pub(crate) struct Checker<'a> {
    document: &'a Value,
    /// `Schema.property`.
    pub(crate) seen: BTreeSet<String>,
}

impl<'a> Checker<'a> {
    pub(crate) const fn new(document: &'a Value) -> Self {
        Self { document, seen: BTreeSet::new() }
    }

    /// Checks `value`; `name` is that of the schema, for the set of seen fields.
    pub(crate) fn check(&mut self, schema: &Value, value: &Value, name: &str) -> Result<(), String> {
        let schema = schema.as_object().unwrap();
        if let Some(reference) = schema.get("$ref") {
            assert_eq!(schema.len(), 1, "{schema:?}");
            let name = reference.as_str().unwrap().strip_prefix(NAMED).unwrap();
            let schema = &self.document["components"]["schemas"][name];
            assert!(schema.is_object(), "there is no schema {name}");
            return self.check(schema, value, name);
        }
        for (keyword, operand) in schema {
            match (keyword.as_str(), value) {
                ("description" | "properties" | "additionalProperties", _) => {}
                ("type", _) => has_type(operand, value, name)?,
                ("enum", _) if !operand.as_array().unwrap().contains(value) => {
                    return Err(format!("{name}: {value} is none of {operand}"));
                }
                ("enum", _) => {}
                ("minimum", Value::Number(n)) if n.as_f64() < operand.as_f64() => {
                    return Err(format!("{name}: {n} is below {operand}"));
                }
                ("maxItems", Value::Array(items)) if items.len() as u64 > operand.as_u64().unwrap() => {
                    return Err(format!("{name}: more than {operand}"));
                }
                ("minimum" | "maxItems", _) => {}
                ("items", Value::Array(items)) => {
                    items.iter().try_for_each(|item| self.check(operand, item, name))?;
                }
                ("oneOf", _) => {
                    let matching = |schema| self.check(schema, value, name).is_ok();
                    let n = operand.as_array().unwrap().iter().map(matching).filter(|fits| *fits).count();
                    if n != 1 {
                        return Err(format!("{name}: {value} is {n} of {operand}"));
                    }
                }
                ("required", Value::Object(object)) => {
                    let required = operand.as_array().unwrap().iter().map(|key| key.as_str().unwrap());
                    if let Some(key) = required.into_iter().find(|key| !object.contains_key(*key)) {
                        return Err(format!("{name} has no {key}"));
                    }
                }
                ("items" | "required", _) => return Err(format!("{name}: {value} is of another type")),
                (keyword, _) => panic!("keyword {keyword} is not known here"),
            }
        }
        if let Value::Object(object) = value { self.properties(schema, object, name) } else { Ok(()) }
    }

    fn properties(
        &mut self,
        schema: &Map<String, Value>,
        object: &Map<String, Value>,
        name: &str,
    ) -> Result<(), String> {
        for (key, value) in object {
            if let Some(schema) = schema.get("properties").and_then(|properties| properties.get(key)) {
                self.seen.insert(format!("{name}.{key}"));
                self.check(schema, value, &format!("{name}.{key}"))?;
            } else {
                match schema.get("additionalProperties") {
                    Some(Value::Bool(false)) => return Err(format!("{name}.{key} is not in the document")),
                    Some(schema) => self.check(schema, value, &format!("{name}.*"))?,
                    None => {}
                }
            }
        }
        Ok(())
    }
}

fn has_type(wanted: &Value, value: &Value, name: &str) -> Result<(), String> {
    let is = |wanted: &Value| match wanted.as_str().unwrap() {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "boolean" => value.is_boolean(),
        "integer" => value.is_u64() || value.is_i64(),
        "null" => value.is_null(),
        other => panic!("type {other} is not known here"),
    };
    let fits = wanted.as_array().map_or_else(|| is(wanted), |types| types.iter().any(is));
    if fits { Ok(()) } else { Err(format!("{name}: {value} is not of type {wanted}")) }
}
