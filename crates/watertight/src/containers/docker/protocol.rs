//! The messages of Docker's volume plugin protocol: a POST with a JSON object for each call. Keys
//! that an engine adds are left alone.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// What is asked.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub(super) struct Request {
    /// The volume.
    pub(super) name: String,
    /// The options of `Create`.
    pub(super) opts: Option<BTreeMap<String, String>>,
    /// The id of the container that mounts.
    #[serde(rename = "ID")]
    pub(super) id: String,
}

/// The answer; only what belongs to the call is in it.
#[derive(Debug, Clone, Default, Serialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct Reply {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) implements: Option<[&'static str; 1]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) mountpoint: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) volume: Option<Volume>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) volumes: Option<Vec<Volume>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) capabilities: Option<Capabilities>,
    /// Empty where nothing went wrong.
    pub(super) err: String,
}

/// A volume in an answer.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct Volume {
    pub(super) name: String,
    /// Empty while it is not mounted.
    pub(super) mountpoint: String,
    pub(super) created_at: String,
    /// For people: `docker volume inspect` prints it.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(super) status: BTreeMap<&'static str, serde_json::Value>,
}

/// What the plugin can do.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct Capabilities {
    /// `local`: a name is known on this host alone.
    pub(super) scope: &'static str,
}
