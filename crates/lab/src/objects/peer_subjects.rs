//! New volumes of peers.

use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, ensure};

use super::bucket::Server;
use super::gcs::GcsServer;
use super::peers::Peer;
use super::subject::{Kind, Subject, directories, said};
use crate::volumes::peers::find;

impl Subject {
    /// A directory of rclone's.
    ///
    /// # Errors
    /// If rclone is not installed, or there is no server.
    pub(super) fn rclone(server: &Server, scratch: &Path, name: &str) -> anyhow::Result<Self> {
        Self::of_peer("rclone", (server, scratch, name), |_, endpoint| {
            let flags = ["--config", "", "--s3-provider", "Other", "--s3-env-auth", "--s3-force-path-style"];
            let mut flags: Vec<String> = flags.map(str::to_owned).into();
            flags.extend(["--s3-endpoint".to_owned(), endpoint]);
            let remote = format!(":s3:{}", server.url(name).trim_start_matches("s3://"));
            Ok(Peer::Rclone { remote, flags })
        })
    }

    /// A new volume of JuiceFS's.
    ///
    /// # Errors
    /// If JuiceFS is not installed, there is no server, or it cannot format the volume.
    pub(super) fn juicefs(
        server: &Server,
        scratch: &Path,
        name: &str,
        writeback: bool,
    ) -> anyhow::Result<Self> {
        Self::of_peer("juicefs", (server, scratch, name), |program, endpoint| {
            let bucket = server.bucket().context("not run: it needs S3")?.0;
            let metadata = format!("sqlite3://{}/{name}/metadata.db", scratch.display());
            let mut format = Command::new(program);
            format.args(["format", "--storage", "s3", "--trash-days", "0", "--bucket"]);
            for (theirs, ours) in
                [("ACCESS_KEY", "AWS_ACCESS_KEY_ID"), ("SECRET_KEY", "AWS_SECRET_ACCESS_KEY")]
            {
                format.env(theirs, std::env::var_os(ours).unwrap_or_default());
            }
            format.arg(format!("{endpoint}/{bucket}")).arg(&metadata);
            let output = format.arg(format!("lab-{}-{name}", std::process::id())).output()?;
            ensure!(output.status.success(), "juicefs format: {}", said(&output));
            Ok(Peer::Juicefs { metadata, writeback })
        })
    }

    /// A directory of s3fs's.
    ///
    /// # Errors
    /// If s3fs is not installed, or there is no server.
    pub(super) fn s3fs(server: &Server, scratch: &Path, name: &str) -> anyhow::Result<Self> {
        Self::of_peer("s3fs", (server, scratch, name), |_, endpoint| {
            let (bucket, base) = server.bucket().context("not run: it needs S3")?;
            Ok(Peer::S3fs { directory: format!("{bucket}:/{base}/{name}"), endpoint })
        })
    }

    /// A bucket of gcsfuse's, on a server of its own.
    ///
    /// # Errors
    /// If gcsfuse or that server is not installed, or there is no server beside which it is.
    pub(super) fn gcsfuse(server: &Server, scratch: &Path, name: &str) -> anyhow::Result<Self> {
        let program = find("gcsfuse").map_err(anyhow::Error::msg)?;
        let directory = directories(scratch, name)?;
        let (own, line) = GcsServer::start(server, &directory.join("server.log"))?;
        let peer = Peer::Gcsfuse { server: own, endpoint: line.endpoint() };
        Ok(Self { directory, program, kind: Kind::Peer(peer), line: Some(line) })
    }

    /// By the peer that comes of its program and its address of the server.
    fn of_peer(
        program: &str,
        (server, scratch, name): (&Server, &Path, &str),
        peer: impl FnOnce(&Path, String) -> anyhow::Result<Peer>,
    ) -> anyhow::Result<Self> {
        let program = find(program).map_err(anyhow::Error::msg)?;
        let line = server.line()?.context("not run: it needs a server")?;
        let directory = directories(scratch, name)?;
        let peer = peer(&program, line.endpoint())?;
        Ok(Self { directory, program, kind: Kind::Peer(peer), line: Some(line) })
    }
}
