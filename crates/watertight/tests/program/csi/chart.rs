//! packaging/kubernetes/chart: with its default values it is what the plain manifests are.
//!
//! Helm itself is asked by `packaging/kubernetes/check`; here, the part of its language is rendered that
//! the chart uses, and anything else in a template is an error.

use std::collections::BTreeMap;
use std::fs;

use clap::Parser as _;
use serde_json::Value;
use watertight::cli::Cli;

use super::manifests::{all_in, list, objects, packaging};

/// What `if`, `range` and values are looked up in.
#[derive(Clone, Copy)]
struct Scope<'v> {
    values: &'v Value,
    namespace: &'v str,
    /// The element that a `range` is at.
    element: Option<&'v Value>,
}

impl<'v> Scope<'v> {
    fn find(self, name: &str) -> Value {
        match name {
            "." => self.element.unwrap_or_else(|| panic!("`.` outside of a range")).clone(),
            ".Release.Namespace" => self.namespace.into(),
            _ => self.value(name).clone(),
        }
    }

    fn value(self, name: &str) -> &'v Value {
        let path = name.strip_prefix(".Values.").unwrap_or_else(|| panic!("{name} is not known here"));
        path.split('.')
            .fold(self.values, |at, part| at.get(part).unwrap_or_else(|| panic!("values.yaml has no {path}")))
    }
}

fn is_true(value: &Value) -> bool {
    match value {
        Value::Bool(value) => *value,
        Value::String(text) => !text.is_empty(),
        Value::Array(all) => !all.is_empty(),
        other => panic!("{other}: no condition"),
    }
}

/// What stands between `{{-` and `}}` on a line of its own.
fn control(line: &str) -> Option<&str> {
    Some(line.trim().strip_prefix("{{-")?.strip_suffix("}}")?.trim())
}

/// The lines up to the `end` that belongs to what was before, and those behind it.
fn block<'l>(lines: &'l [&'l str]) -> (&'l [&'l str], &'l [&'l str]) {
    let mut depth = 0;
    for (at, line) in lines.iter().enumerate() {
        match control(line) {
            Some("end") if depth == 0 => return (&lines[..at], &lines[at + 1..]),
            Some("end") => depth -= 1,
            Some(_) => depth += 1,
            None => {}
        }
    }
    panic!("there is no end: {lines:?}")
}

fn render<'l>(mut lines: &'l [&'l str], scope: Scope<'_>, into: &mut String) {
    while let Some((line, rest)) = lines.split_first() {
        let Some(control) = control(line) else {
            into.push_str(&substituted(line, scope));
            into.push('\n');
            lines = rest;
            continue;
        };
        let (inner, behind) = block(rest);
        match control.split_once(' ') {
            Some(("if", name)) if is_true(scope.value(name)) => render(inner, scope, into),
            Some(("if", _)) => {}
            Some(("range", name)) => {
                for element in scope.value(name).as_array().unwrap() {
                    render(inner, Scope { element: Some(element), ..scope }, into);
                }
            }
            _ => panic!("{control} is not known here"),
        }
        lines = behind;
    }
}

fn substituted(line: &str, scope: Scope<'_>) -> String {
    let mut parts = line.split("{{");
    let mut text = parts.next().unwrap().to_owned();
    for part in parts {
        let (expression, behind) = part.split_once("}}").unwrap_or_else(|| panic!("{line}"));
        let (name, is_quoted) = match expression.trim().split_once(" | ") {
            Some((name, "quote")) => (name, true),
            None => (expression.trim(), false),
            other => panic!("{other:?} is not known here"),
        };
        let value = match scope.find(name) {
            Value::String(value) => value,
            other => other.to_string(),
        };
        text.push_str(&if is_quoted { format!("{value:?}") } else { value });
        text.push_str(behind);
    }
    text
}

fn rendered(values: &Value, namespace: &str) -> Vec<Value> {
    let templates = fs::read_dir(packaging().join("chart/templates")).unwrap();
    let mut all = Vec::new();
    for file in templates.map(|file| file.unwrap().path()) {
        let text = fs::read_to_string(&file).unwrap();
        let mut yaml = String::new();
        render(&text.lines().collect::<Vec<_>>(), Scope { values, namespace, element: None }, &mut yaml);
        all.extend(objects(&file, &yaml));
    }
    all
}

fn named(objects: impl IntoIterator<Item = Value>) -> BTreeMap<(String, String), Value> {
    let key = |object: &Value| {
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        (text(&object["kind"]), text(&object["metadata"]["name"]))
    };
    objects.into_iter().map(|object| (key(&object), object)).collect()
}

fn values() -> Value {
    let file = packaging().join("chart/values.yaml");
    objects(&file, &fs::read_to_string(&file).unwrap()).remove(0)
}

#[test]
fn the_chart_is_what_the_plain_manifests_are() {
    let plain = all_in(&packaging()).into_iter().map(|(_, object)| object);
    let mut plain = named(plain);
    // Helm makes the namespace (`--create-namespace`).
    assert!(plain.remove(&("Namespace".to_owned(), "watertight".to_owned())).is_some());
    let chart = named(rendered(&values(), "watertight"));
    assert_eq!(chart.keys().collect::<Vec<_>>(), plain.keys().collect::<Vec<_>>());
    for (key, object) in &chart {
        assert_eq!(object, &plain[key], "{key:?}");
    }
}

#[test]
fn the_chart_is_installed_into_any_namespace() {
    let elsewhere = rendered(&values(), "storage");
    let spaces = elsewhere.iter().flat_map(|object| {
        let subjects = object["subjects"].as_array().cloned().unwrap_or_default();
        let of_subjects = subjects.into_iter().map(|subject| subject["namespace"].clone());
        of_subjects.chain([object["metadata"]["namespace"].clone()]).collect::<Vec<_>>()
    });
    let named: Vec<Value> = spaces.filter(|space| !space.is_null()).collect();
    assert!(!named.is_empty() && named.iter().all(|space| space == "storage"), "{named:?}");
}

#[test]
fn what_the_chart_s_values_change_the_driver_takes() {
    let mut values = values();
    let node = &mut values["node"];
    node["directories"] = serde_json::json!(["/srv/a", "/srv/b"]);
    for (key, value) in [("diskCache", "/var/cache/w"), ("journal", "/var/j"), ("keyDirectory", "/etc/k")] {
        node[key] = value.into();
    }
    values["snapshots"] = false.into();
    values["secret"]["create"] = false.into();
    let all = named(rendered(&values, "watertight"));
    for gone in ["Secret", "VolumeSnapshotClass"] {
        assert!(all.keys().all(|(kind, _)| kind != gone), "{gone}");
    }
    let of = |kind: &str| all.iter().find(|((one, _), _)| one == kind).unwrap().1;
    assert!(!of("Deployment").to_string().contains("snapshotter"));
    let containers = &of("DaemonSet")["spec"]["template"]["spec"]["containers"];
    let mut arguments = vec!["watertight".to_owned()];
    arguments.extend(list(&containers[0]["args"]));
    for argument in
        ["--directory=/srv/b", "--disk-cache=/var/cache/w", "--journal=/var/j", "--key-directory=/etc/k"]
    {
        assert!(arguments.iter().any(|one| one == argument), "{argument}: {arguments:?}");
    }
    assert!(Cli::try_parse_from(&arguments).is_ok(), "{arguments:?}");
}
