//! toxiproxy before the server, and what it does to connections.

use std::net::SocketAddr;
use std::path::Path;

use serde_json::{Value, json};

use super::super::http::ask;
use super::super::side_server::{SideServer, free_address};

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
    _process: SideServer,
}

impl Toxiproxy {
    /// Starts it before the server at this address.
    ///
    /// # Errors
    /// If it is not installed, or does not answer.
    pub(super) fn before(server: SocketAddr, log: &Path) -> anyhow::Result<Self> {
        let (api, address) = (free_address()?, free_address()?);
        let wish = json!({ "name": "server", "listen": address, "upstream": server, "enabled": true });
        let ready = || ask(api, "POST", "/proxies", &wish.to_string()).map(drop);
        let arguments = ["-host", "127.0.0.1", "-port", &api.port().to_string()];
        let process = SideServer::start("toxiproxy-server", &arguments, log, ready)?;
        Ok(Self { api, address, _process: process })
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
