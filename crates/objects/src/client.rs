//! The HTTP client below every store: time limits, TLS, proxies; neither retries nor redirects.
//!
//! [`Bucket`](crate::bucket::Bucket) retries, and knows which requests had an unknown outcome: a
//! retry that a lower layer hides would make a conditional request's answer a riddle. A redirect is
//! an error: followed, a login page's `200` would pass for a stored object.
//!
//! Volumes of a process share a client, with its certificates and its idle connections, where its
//! settings are the same. HTTP/1.1 has one request at a time on a connection and a client as many
//! connections as it needs: a server that hangs holds up nobody else. A connection is driven by the
//! runtime on which it was opened, so that only those share clients that use the process's own
//! ([`Clients::Shared`]), and bulk data has a client of its own: no small request gets a connection
//! whose threads are busy with segments.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, LazyLock, Once, Weak};
use std::time::Duration;

use async_trait::async_trait;
use object_store::client::{HttpClient, HttpConnector, HttpError, HttpRequest, HttpResponse, HttpService};
use object_store::{BackoffConfig, ClientConfigKey, ClientOptions, RetryConfig};
use parking_lot::Mutex;
use reqwest::Certificate;
use store::{Error, ErrorKind, Result};

use crate::runtime::is_bulk_thread;

/// How long a connection may take.
const CONNECT: Duration = Duration::from_secs(5);
/// The end of any request, far beyond the limits of [`Bucket`](crate::bucket::Bucket): what forgot
/// its limit does not stay for ever.
const LAST_LIMIT: Duration = Duration::from_secs(600);
/// How long an idle connection is kept: servers close theirs after some 20 to 60 s.
const IDLE: Duration = Duration::from_secs(20);

/// Whose client is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Clients {
    /// Those of all volumes of the process: all requests are sent on [`crate::runtime`]'s threads.
    Shared,
    /// A new one: they may be sent on any one runtime.
    Own,
}

/// What the clients differ in.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Settings {
    allows_http: bool,
    /// For the instance's metadata service.
    is_for_metadata: bool,
    /// For requests that are sent on the threads for bulk data.
    is_for_bulk: bool,
    /// The certificate authorities, if not the system's.
    pem: Option<Vec<u8>>,
}

/// The clients that volumes of this process use, as long as they do.
static SHARED: LazyLock<Mutex<HashMap<Settings, Weak<reqwest::Client>>>> = LazyLock::new(Mutex::default);

/// A client that others may use as well.
#[derive(Debug)]
struct Shared(Arc<reqwest::Client>);

/// The shared clients of one bucket: which is used, the thread decides.
#[derive(Debug)]
struct ByThread {
    others: Shared,
    bulk: Shared,
}

#[async_trait]
impl HttpService for ByThread {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let Shared(client) = if is_bulk_thread() { &self.bulk } else { &self.others };
        client.call(request).await
    }
}

impl Shared {
    /// The client with these settings that is there, or one that `make` makes.
    fn get<E>(settings: Settings, make: impl FnOnce() -> Result<reqwest::Client, E>) -> Result<Self, E> {
        let mut clients = SHARED.lock();
        if let Some(client) = clients.get(&settings).and_then(Weak::upgrade) {
            return Ok(Self(client));
        }
        let client = Arc::new(make()?);
        clients.retain(|_, client| client.strong_count() > 0);
        clients.insert(settings, Arc::downgrade(&client));
        Ok(Self(client))
    }
}

/// Makes the clients.
pub(crate) struct Connector {
    roots: Vec<Certificate>,
    pem: Option<Vec<u8>>,
    clients: Clients,
}

impl fmt::Debug for Connector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connector").field("roots", &self.roots.len()).finish()
    }
}

impl Connector {
    /// With the certificate authorities of `pem` instead of the system's.
    pub(crate) fn new(pem: Option<&[u8]>, clients: Clients) -> Result<Self> {
        install_crypto();
        let wrong = |detail: String| Error::with(ErrorKind::Invalid, "connect", detail);
        let roots = match pem {
            None => Vec::new(),
            Some(pem) => Certificate::from_pem_bundle(pem)
                .map_err(|error| wrong(format!("the certificates of AWS_CA_BUNDLE: {error}")))?,
        };
        if pem.is_some() && roots.is_empty() {
            return Err(wrong("AWS_CA_BUNDLE names a file without a certificate".to_owned()));
        }
        Ok(Self { roots, pem: pem.map(<[u8]>::to_vec), clients })
    }
}

impl HttpConnector for Connector {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        let failed = |error: reqwest::Error| object_store::Error::Generic {
            store: "HTTP client",
            source: Box::new(error),
        };
        let is = |key: ClientConfigKey, value: &str| {
            options.get_config_value(&key).is_some_and(|set| set == value)
        };
        // The crate shortens this limit for the instance's metadata service only, which no proxy
        // reaches.
        let ours = client_options(false).get_config_value(&ClientConfigKey::ConnectTimeout);
        let settings = Settings {
            allows_http: is(ClientConfigKey::AllowHttp, "true"),
            is_for_metadata: options.get_config_value(&ClientConfigKey::ConnectTimeout) != ours,
            is_for_bulk: false,
            pem: self.pem.clone(),
        };
        let make = || self.make(&settings).map_err(failed);
        Ok(match self.clients {
            Clients::Own => HttpClient::new(make()?),
            Clients::Shared => HttpClient::new(ByThread {
                others: Shared::get(settings.clone(), make)?,
                bulk: Shared::get(Settings { is_for_bulk: true, ..settings.clone() }, make)?,
            }),
        })
    }
}

impl Connector {
    fn make(&self, settings: &Settings) -> reqwest::Result<reqwest::Client> {
        let mut builder = reqwest::Client::builder()
            .user_agent(concat!("watertight/", env!("CARGO_PKG_VERSION")))
            .https_only(!settings.allows_http)
            .redirect(reqwest::redirect::Policy::none())
            .retry(reqwest::retry::never())
            .timeout(LAST_LIMIT)
            .pool_idle_timeout(IDLE)
            .http1_only();
        builder = if settings.is_for_metadata {
            builder.connect_timeout(Duration::from_secs(1)).timeout(Duration::from_secs(5)).no_proxy()
        } else {
            builder.connect_timeout(CONNECT)
        };
        if !self.roots.is_empty() {
            builder = builder.tls_certs_only(self.roots.iter().cloned());
        }
        builder.build()
    }
}

/// The options that the crate reads itself, or hands to the [`Connector`].
pub(crate) fn client_options(allows_http: bool) -> ClientOptions {
    ClientOptions::new().with_allow_http(allows_http).with_connect_timeout(CONNECT)
}

/// Not a single retry below [`Bucket`](crate::bucket::Bucket).
pub(crate) fn no_retry() -> RetryConfig {
    RetryConfig { backoff: BackoffConfig::default(), max_retries: 0, retry_timeout: Duration::ZERO }
}

/// The cryptography of TLS, for the whole process; one that was installed before stays.
fn install_crypto() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // An error says that there is one already.
        let _ = rustls::crypto::ring::default_provider().install_default();
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_with_the_system_s_roots_is_made() {
        let connector = Connector::new(None, Clients::Own).unwrap();
        assert!(connector.connect(&client_options(false)).is_ok());
        assert!(connector.connect(&client_options(true)).is_ok());
    }

    #[test]
    fn a_client_is_shared_while_somebody_uses_it() {
        let settings = |pem: &[u8]| Settings {
            allows_http: true,
            is_for_metadata: false,
            is_for_bulk: false,
            pem: Some(pem.to_vec()),
        };
        let connector = Connector::new(None, Clients::Own).unwrap();
        let get = |pem: &[u8]| Shared::get(settings(pem), || connector.make(&settings(pem))).unwrap();
        let (one, two, other) = (get(b"test-shared"), get(b"test-shared"), get(b"test-other"));
        assert!(Arc::ptr_eq(&one.0, &two.0) && !Arc::ptr_eq(&one.0, &other.0));
        let gone = Arc::downgrade(&one.0);
        drop((one, two));
        assert!(gone.upgrade().is_none(), "nobody uses it any more");
        let _again = get(b"test-shared");
        assert!(SHARED.lock().contains_key(&settings(b"test-shared")));
    }

    #[test]
    fn a_bundle_without_a_certificate_is_refused() {
        for pem in
            [&b""[..], b"no certificate", b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"]
        {
            // The last is one by its frame; the client's making refuses it.
            if let Ok(connector) = Connector::new(Some(pem), Clients::Own) {
                assert!(connector.connect(&client_options(false)).is_err());
            }
        }
    }
}
