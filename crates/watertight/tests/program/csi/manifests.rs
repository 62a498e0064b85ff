//! packaging/kubernetes: what the manifests say, the driver takes.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use crate::rig::Rig;
use clap::Parser as _;
use saphyr::{LoadableYamlNode as _, Yaml};
use serde_json::{Map, Value};
use watertight::cli::{Cli, Verb};
use watertight::containers::csi::{ATTRIBUTES, PARAMETERS, POD_LIMITS, SECRETS, check_mount_options};

/// What sidecars and Kubernetes know themselves.
const OF_SIDECARS: &str = "csi.storage.k8s.io/";

fn json(yaml: &Yaml) -> Value {
    if let Some(mapping) = yaml.as_mapping() {
        let entry = |(key, value): (&Yaml, &Yaml)| (key.as_str().unwrap().to_owned(), json(value));
        return Value::Object(mapping.iter().map(entry).collect::<Map<_, _>>());
    }
    if let Some(sequence) = yaml.as_sequence() {
        return sequence.iter().map(json).collect();
    }
    let scalar = yaml.as_str().map(Value::from).or_else(|| yaml.as_bool().map(Value::from));
    let scalar = scalar.or_else(|| yaml.as_integer().map(Value::from));
    scalar.unwrap_or_else(|| panic!("{yaml:?} is none of what manifests have"))
}

pub(super) fn packaging() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/kubernetes")
}

/// The objects of a file.
pub(super) fn objects(file: &Path, text: &str) -> Vec<Value> {
    let all = Yaml::load_from_str(text).unwrap_or_else(|error| panic!("{}: {error}\n{text}", file.display()));
    // A template may have nothing between two lines of dashes.
    all.iter().filter(|one| !one.is_null()).map(json).collect()
}

/// All objects of a directory, each with its file.
pub(super) fn all_in(dir: &Path) -> Vec<(PathBuf, Value)> {
    let files = fs::read_dir(dir).unwrap().map(|file| file.unwrap().path());
    let files = files.filter(|file| file.extension().is_some_and(|extension| extension == "yaml"));
    let objects = |file: PathBuf| {
        let all = objects(&file, &fs::read_to_string(&file).unwrap());
        all.into_iter().map(|one| (file.clone(), one)).collect::<Vec<_>>()
    };
    files.flat_map(objects).collect()
}

/// All values of these keys, wherever they are.
fn found<'v>(value: &'v Value, key: &str, into: &mut Vec<&'v Value>) {
    match value {
        Value::Object(map) => {
            into.extend(map.get(key));
            map.values().for_each(|inner| found(inner, key, into));
        }
        Value::Array(all) => all.iter().for_each(|inner| found(inner, key, into)),
        _ => {}
    }
}

fn keys(value: &Value) -> Vec<&str> {
    value.as_object().into_iter().flatten().map(|(key, _)| key.as_str()).collect()
}

pub(super) fn list(value: &Value) -> Vec<String> {
    value.as_array().unwrap().iter().map(|one| one.as_str().unwrap().to_owned()).collect()
}

#[test]
fn manifests_say_what_the_driver_takes() {
    let mut all = all_in(&packaging());
    all.extend(all_in(&packaging().join("examples")));
    let name = match Cli::try_parse_from(["watertight", "csi"]).unwrap().verb {
        Verb::Csi(args) => args.driver_name,
        other => panic!("{other:?}"),
    };
    let mut classes = BTreeSet::new();
    let mut seen = BTreeSet::new();
    for (file, object) in &all {
        let at = file.display();
        let get = |key: &str| {
            let mut into = Vec::new();
            found(object, key, &mut into);
            into
        };
        let kind = object["kind"].as_str().unwrap_or_else(|| panic!("{at}: {object}"));
        seen.insert(kind.to_owned());
        assert!(object["apiVersion"].is_string() && object["metadata"]["name"].is_string(), "{at}: {kind}");
        for driver in get("driver").into_iter().chain(get("provisioner")) {
            assert_eq!(driver, name.as_str(), "{at}");
        }
        if kind == "CSIDriver" {
            assert_eq!(object["metadata"]["name"], name.as_str());
        }
        if kind == "StorageClass" {
            classes.insert(object["metadata"]["name"].as_str().unwrap());
            for key in keys(&object["parameters"]) {
                assert!(
                    PARAMETERS.contains(&key) || POD_LIMITS.contains(&key) || key.starts_with(OF_SIDECARS),
                    "{at}: parameter {key}"
                );
            }
        }
        for attributes in get("volumeAttributes") {
            keys(attributes).into_iter().for_each(|key| {
                assert!(ATTRIBUTES.contains(&key) || POD_LIMITS.contains(&key), "{at}: {key}")
            });
        }
        for options in get("mountOptions") {
            let mut options = list(options);
            options.push("ro".to_owned());
            check_mount_options(&options).unwrap_or_else(|problem| panic!("{at}: {problem}"));
        }
        for secret in get("stringData") {
            keys(secret).into_iter().for_each(|key| assert!(SECRETS.contains(&key), "{at}: {key}"));
        }
        for container in get("containers").into_iter().flat_map(|all| all.as_array().unwrap()) {
            if container["image"].as_str().unwrap().starts_with("watertight:") {
                let mut arguments = vec!["watertight".to_owned()];
                arguments.extend(list(&container["args"]));
                let parsed = Cli::try_parse_from(&arguments);
                assert!(parsed.is_ok(), "{at}: {arguments:?}: {:?}", parsed.err());
                seen.insert("driver".to_owned());
            }
        }
    }
    for kind in
        ["CSIDriver", "DaemonSet", "Deployment", "StorageClass", "StatefulSet", "VolumeSnapshot", "driver"]
    {
        assert!(seen.contains(kind), "no {kind} in {seen:?}");
    }
    // What claims name is there.
    for (file, object) in &all {
        let mut named = Vec::new();
        found(object, "storageClassName", &mut named);
        let named = named.into_iter().map(|name| name.as_str().unwrap()).filter(|name| !name.is_empty());
        for class in named {
            assert!(classes.contains(class), "{}: there is no class {class}", file.display());
        }
    }
}

/// Kubelet makes a pod's own directories so that all users of its containers may write to them.
#[test]
fn the_controller_starts_in_directories_as_kubelet_makes_them() {
    let mut rig = Rig::new();
    let all = all_in(&packaging());
    let controller = all.iter().find(|(_, object)| object["kind"] == "Deployment").unwrap();
    let driver = &controller.1["spec"]["template"]["spec"]["containers"][0];
    let mounts = list(
        &driver["volumeMounts"].as_array().unwrap().iter().map(|one| one["mountPath"].clone()).collect(),
    );
    for mount in &mounts {
        let dir = rig.root.join(&mount[1..]);
        fs::create_dir_all(&dir).unwrap();
        fs::set_permissions(&dir, fs::Permissions::from_mode(0o777)).unwrap();
    }
    // The container's root is the rig's.
    let root = rig.root.display().to_string();
    let there = |text: &str| {
        let inside =
            |text: String, mount: &String| text.replace(&format!("{mount}/"), &format!("{root}{mount}/"));
        let whole = mounts.iter().find(|mount| text.ends_with(&format!("={mount}")));
        let text =
            whole.map_or_else(|| text.to_owned(), |mount| text.replace(mount, &format!("{root}{mount}")));
        mounts.iter().fold(text, inside)
    };
    let arguments: Vec<String> = list(&driver["args"]).iter().map(|argument| there(argument)).collect();
    let mut command = rig.command(&arguments);
    for variable in driver["env"].as_array().unwrap() {
        command.env(variable["name"].as_str().unwrap(), there(variable["value"].as_str().unwrap()));
    }
    let daemon = rig.start(command);
    assert!(
        rig.root.join("csi/csi.sock").exists()
            && fs::read_dir(rig.root.join("state")).unwrap().next().is_some()
    );
    daemon.stop();
}
