//! A server of Google's protocol, of its own for each subject of gcsfuse.
//!
//! fake-gcs-server keeps the conditions of writes, without which gcsfuse would not notice that
//! another host has changed a file. It is in memory, and answers at the distance of the others.

use std::net::SocketAddr;
use std::path::Path;

use anyhow::{Context as _, ensure};
use serde_json::Value;

use super::bucket::Server;
use super::delay::Line;
use super::http;
use super::side_server::{SideServer, free_address};

pub(super) const BUCKET: &str = "bucket";
/// Objects of a page of a listing.
const PAGE: usize = 5000;

/// See the [module](self). It ends with this value.
pub(super) struct GcsServer {
    address: SocketAddr,
    _process: SideServer,
}

impl GcsServer {
    /// Starts one with an empty bucket, and says by which line it is to be used.
    ///
    /// # Errors
    /// If it is not installed, or does not answer.
    pub(super) fn start(beside: &Server, log: &Path) -> anyhow::Result<(Self, Line)> {
        let address = free_address()?;
        let line = beside.line_to(address)?.context("not run: it needs a server")?;
        let (port, named) = (address.port().to_string(), line.endpoint());
        let mut arguments =
            vec!["-backend", "memory", "-scheme", "http", "-host", "127.0.0.1", "-port", &port];
        // It names itself in the address of an upload in parts.
        arguments.extend(["-public-host", named.trim_start_matches("http://")]);
        let body = format!("{{\"name\":\"{BUCKET}\"}}");
        let make_bucket = || http::ask(address, "POST", "/storage/v1/b?project=lab", &body).map(drop);
        let process = SideServer::start("fake-gcs-server", &arguments, log, make_bucket)?;
        Ok((Self { address, _process: process }, line))
    }

    /// Its objects, with their bytes.
    ///
    /// # Errors
    /// If it does not list them.
    pub(super) fn objects(&self) -> anyhow::Result<Vec<(String, u64)>> {
        let answer =
            http::ask(self.address, "GET", &format!("/storage/v1/b/{BUCKET}/o?maxResults={PAGE}"), "")?;
        let items = answer["items"].as_array().map(Vec::as_slice).unwrap_or_default();
        ensure!(answer["nextPageToken"].as_str().is_none_or(str::is_empty), "more than {PAGE} objects");
        let object =
            |item: &Value| Some((item["name"].as_str()?.to_owned(), item["size"].as_str()?.parse().ok()?));
        items.iter().map(|item| object(item).with_context(|| format!("no object: {item}"))).collect()
    }
}
