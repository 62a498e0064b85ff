//! A server that the lab starts beside the one it is given: on this host only, and it ends with its value.

use std::fs::File;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};

use crate::child::ends_with_the_lab;
use crate::volumes::peers::find;

const START_MAX: Duration = Duration::from_secs(20);

/// See the [module](self).
pub(super) struct SideServer(Child);

/// An address on this host that no process listens at.
///
/// # Errors
/// If no port is free.
pub(super) fn free_address() -> std::io::Result<SocketAddr> {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()
}

impl SideServer {
    /// Starts a program, and returns when it has answered a first request.
    ///
    /// # Errors
    /// If it is not installed, or does not answer.
    pub(super) fn start(
        program: &str,
        arguments: &[&str],
        log: &Path,
        ask: impl Fn() -> anyhow::Result<()>,
    ) -> anyhow::Result<Self> {
        let output = File::create(log)?;
        let mut command = Command::new(find(program).map_err(anyhow::Error::msg)?);
        command.args(arguments).stdin(Stdio::null()).stdout(output.try_clone()?).stderr(output);
        ends_with_the_lab(&mut command);
        let server = Self(command.spawn().with_context(|| format!("cannot start {program}"))?);
        let until = Instant::now() + START_MAX;
        while let Err(error) = ask() {
            ensure!(Instant::now() < until, "{program} does not answer: {error:#}");
            // It tells nobody when it listens.
            thread::sleep(Duration::from_millis(10));
        }
        Ok(server)
    }
}

impl Drop for SideServer {
    fn drop(&mut self) {
        // It is gone if that fails, and is waited for either way.
        let _gone_already = self.0.kill();
        let _waited_for = self.0.wait();
    }
}
