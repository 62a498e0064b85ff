//! Calls of a mount process's control socket, without the start of a program in their time.

use std::fs;
use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use serde_json::Value;

/// Longer than any answer takes: a caller that waits so long has met a defect, and fails with that.
const PATIENCE: Duration = Duration::from_secs(60);

/// The socket of one volume.
#[derive(Clone, Debug)]
pub(crate) struct Control(PathBuf);

impl Control {
    /// Makes a call; its answer, if that is no error.
    ///
    /// # Errors
    /// If the process does not answer, or with an error, in its words.
    pub(crate) fn call(&self, method: &str, path: &str, body: &Value) -> anyhow::Result<Value> {
        let body = body.to_string();
        let mut stream = UnixStream::connect(&self.0).context("the control socket")?;
        stream.set_read_timeout(Some(PATIENCE))?;
        let length = body.len();
        stream.write_all(
            format!(
                "{method} {path} HTTP/1.1\r\nhost: lab\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n{body}"
            )
            .as_bytes(),
        )?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).with_context(|| format!("{method} {path}"))?;
        let (head, body) = answer.split_once("\r\n\r\n").context("the response has no end of its header")?;
        ensure!(head.contains(" 200 "), "{method} {path}: {body}");
        Ok(serde_json::from_str(body)?)
    }

    /// The volume's own status.
    ///
    /// # Errors
    /// As [`call`](Self::call).
    pub(crate) fn status(&self) -> anyhow::Result<Value> {
        self.call("GET", "/v1/status", &Value::Null)
    }
}

/// The volumes that have a record in a runtime directory, and where each is, or was. A mount is
/// there a moment before its record.
///
/// # Errors
/// If the directory cannot be read.
pub(crate) fn known(run: &Path) -> anyhow::Result<Vec<(PathBuf, Control)>> {
    let mut all = Vec::new();
    for entry in fs::read_dir(run)? {
        let file = entry?.path();
        // Written under another name and renamed: it is whole; it may go meanwhile.
        let is_record = file.extension().is_some_and(|ext| ext == "json");
        let Some(text) = is_record.then(|| fs::read_to_string(&file).ok()).flatten() else { continue };
        let record: Value = serde_json::from_str(&text).unwrap_or_default();
        if let Some(mountpoint) = record["mountpoint"].as_str().filter(|_| record["ended"].is_null()) {
            all.push((PathBuf::from(mountpoint), Control(file.with_extension("sock"))));
        }
    }
    Ok(all)
}
