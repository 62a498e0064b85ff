//! toxiproxy before the server, and what it does to connections.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use serde_json::{Value, json};

use super::super::http::ask;
use crate::child::ends_with_the_lab;
use crate::volumes::peers::find;

const START_MAX: Duration = Duration::from_secs(20);

/// What is done to connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Toxic {
    Latency,
    Bandwidth,
    SlowClose,
    Timeout,
    ResetPeer,
    Slicer,
    LimitData,
}

impl Toxic {
    /// As toxiproxy has it, and which way it is for.
    fn description(self) -> Value {
        let (kind, stream, attributes) = match self {
            Self::Latency => ("latency", "downstream", json!({ "latency": 1000, "jitter": 500 })),
            // KB/s.
            Self::Bandwidth => ("bandwidth", "upstream", json!({ "rate": 50 })),
            Self::SlowClose => ("slow_close", "downstream", json!({ "delay": 1000 })),
            // Nothing comes through, until the toxic goes.
            Self::Timeout => ("timeout", "upstream", json!({ "timeout": 0 })),
            Self::ResetPeer => ("reset_peer", "upstream", json!({ "timeout": 0 })),
            // A piece each millisecond.
            Self::Slicer => {
                let pieces = json!({ "average_size": 64, "size_variation": 32, "delay": 1000 });
                ("slicer", "upstream", pieces)
            }
            Self::LimitData => ("limit_data", "upstream", json!({ "bytes": 20_000 })),
        };
        json!({ "name": "ill", "type": kind, "stream": stream, "attributes": attributes })
    }
}

/// See the [module](self). It ends with this value.
pub(super) struct Toxiproxy {
    api: SocketAddr,
    pub(super) address: SocketAddr,
    process: Child,
}

impl Toxiproxy {
    /// Starts it before the server at this address.
    ///
    /// # Errors
    /// If it is not installed, or does not answer.
    pub(super) fn before(server: SocketAddr, log: &Path) -> anyhow::Result<Self> {
        let program = find("toxiproxy-server").map_err(anyhow::Error::msg)?;
        let free = || TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr();
        let (api, address) = (free()?, free()?);
        let output = std::fs::File::create(log)?;
        let mut command = Command::new(program);
        command.args(["-host", "127.0.0.1", "-port"]).arg(api.port().to_string());
        command.stdin(Stdio::null()).stdout(output.try_clone()?).stderr(output);
        ends_with_the_lab(&mut command);
        let proxy = Self { api, address, process: command.spawn().context("cannot start toxiproxy-server")? };
        let wish = json!({ "name": "server", "listen": address, "upstream": server, "enabled": true });
        let until = Instant::now() + START_MAX;
        while let Err(error) = ask(api, "POST", "/proxies", &wish.to_string()) {
            ensure!(Instant::now() < until, "toxiproxy-server does not answer: {error:#}");
            // It tells nobody when it listens.
            thread::sleep(Duration::from_millis(10));
        }
        Ok(proxy)
    }

    /// # Errors
    /// If it does not do it.
    pub(super) fn add(&self, toxic: Toxic) -> anyhow::Result<()> {
        ask(self.api, "POST", "/proxies/server/toxics", &toxic.description().to_string()).map(drop)
    }

    /// # Errors
    /// If it does not do it.
    pub(super) fn remove(&self) -> anyhow::Result<()> {
        ask(self.api, "DELETE", "/proxies/server/toxics/ill", "").map(drop)
    }
}

impl Drop for Toxiproxy {
    fn drop(&mut self) {
        // It is gone if that fails, and is waited for either way.
        let _gone_already = self.process.kill();
        let _waited_for = self.process.wait();
    }
}
