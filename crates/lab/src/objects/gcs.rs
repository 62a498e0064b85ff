//! A server of Google's protocol, of its own for each subject of gcsfuse.
//!
//! fake-gcs-server keeps the conditions of writes, without which gcsfuse would not notice that
//! another host has changed a file. It is in memory, and answers at the distance of the others.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use serde_json::Value;

use super::bucket::Server;
use super::delay::Line;
use super::http;
use crate::child::ends_with_the_lab;
use crate::volumes::peers::find;

pub(super) const BUCKET: &str = "bucket";
const START_MAX: Duration = Duration::from_secs(20);
/// Objects of a page of a listing.
const PAGE: usize = 5000;

/// See the [module](self). It ends with this value.
pub(super) struct GcsServer {
    address: SocketAddr,
    process: Child,
}

impl GcsServer {
    /// Starts one with an empty bucket, and says by which line it is to be used.
    ///
    /// # Errors
    /// If it is not installed, or does not answer.
    pub(super) fn start(beside: &Server, log: &Path) -> anyhow::Result<(Self, Line)> {
        let program = find("fake-gcs-server").map_err(anyhow::Error::msg)?;
        let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port();
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let line = beside.line_to(address)?.context("not run: it needs a server")?;
        let mut command = Command::new(program);
        command.args(["-backend", "memory", "-scheme", "http", "-host", "127.0.0.1", "-port"]);
        command.arg(port.to_string());
        // It names itself in the address of an upload in parts.
        command.arg("-public-host").arg(line.endpoint().trim_start_matches("http://"));
        let output = std::fs::File::create(log)?;
        command.stdin(Stdio::null()).stdout(output.try_clone()?).stderr(output);
        ends_with_the_lab(&mut command);
        let server = Self { address, process: command.spawn().context("cannot start fake-gcs-server")? };
        let until = Instant::now() + START_MAX;
        while let Err(error) = server.make_bucket() {
            ensure!(Instant::now() < until, "fake-gcs-server does not answer: {error:#}");
            // It tells nobody when it listens.
            thread::sleep(Duration::from_millis(10));
        }
        Ok((server, line))
    }

    fn make_bucket(&self) -> anyhow::Result<()> {
        let body = format!("{{\"name\":\"{BUCKET}\"}}");
        http::ask(self.address, "POST", "/storage/v1/b?project=lab", &body).map(drop)
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

impl Drop for GcsServer {
    fn drop(&mut self) {
        // It is gone if that fails, and is waited for either way.
        let _gone_already = self.process.kill();
        let _waited_for = self.process.wait();
    }
}
