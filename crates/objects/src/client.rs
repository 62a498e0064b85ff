//! The HTTP client below every store: time limits, TLS, proxies; neither retries nor redirects.
//!
//! [`Bucket`](crate::bucket::Bucket) retries, and knows which requests had an unknown outcome: a
//! retry that a lower layer hides would make a conditional request's answer a riddle. A redirect is
//! an error: followed, a login page's `200` would pass for a stored object.

use std::fmt;
use std::sync::Once;
use std::time::Duration;

use object_store::client::{HttpClient, HttpConnector};
use object_store::{BackoffConfig, ClientConfigKey, ClientOptions, RetryConfig};
use reqwest::Certificate;
use store::{Error, ErrorKind, Result};

/// How long a connection may take.
const CONNECT: Duration = Duration::from_secs(5);
/// The end of any request, far beyond the limits of [`Bucket`](crate::bucket::Bucket): what forgot
/// its limit does not stay for ever.
const LAST_LIMIT: Duration = Duration::from_secs(600);
/// How long an idle connection is kept: servers close theirs after some 20 to 60 s.
const IDLE: Duration = Duration::from_secs(20);

/// Makes the clients.
pub(crate) struct Connector {
    roots: Vec<Certificate>,
}

impl fmt::Debug for Connector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connector").field("roots", &self.roots.len()).finish()
    }
}

impl Connector {
    /// With the certificate authorities of `pem` instead of the system's.
    pub(crate) fn new(pem: Option<&[u8]>) -> Result<Self> {
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
        Ok(Self { roots })
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
        let allows_http = is(ClientConfigKey::AllowHttp, "true");
        let mut builder = reqwest::Client::builder()
            .user_agent(concat!("watertight/", env!("CARGO_PKG_VERSION")))
            .https_only(!allows_http)
            .redirect(reqwest::redirect::Policy::none())
            .retry(reqwest::retry::never())
            .timeout(LAST_LIMIT)
            .pool_idle_timeout(IDLE)
            .http1_only();
        // The crate shortens this limit for the instance's metadata service only, which no proxy
        // reaches.
        let ours = client_options(allows_http).get_config_value(&ClientConfigKey::ConnectTimeout);
        builder = if options.get_config_value(&ClientConfigKey::ConnectTimeout) == ours {
            builder.connect_timeout(CONNECT)
        } else {
            builder.connect_timeout(Duration::from_secs(1)).timeout(Duration::from_secs(5)).no_proxy()
        };
        if !self.roots.is_empty() {
            builder = builder.tls_certs_only(self.roots.iter().cloned());
        }
        Ok(HttpClient::new(builder.build().map_err(failed)?))
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
        let connector = Connector::new(None).unwrap();
        assert!(connector.connect(&client_options(false)).is_ok());
        assert!(connector.connect(&client_options(true)).is_ok());
    }

    #[test]
    fn a_bundle_without_a_certificate_is_refused() {
        for pem in
            [&b""[..], b"no certificate", b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"]
        {
            // The last is one by its frame; the client's making refuses it.
            if let Ok(connector) = Connector::new(Some(pem)) {
                assert!(connector.connect(&client_options(false)).is_err());
            }
        }
    }
}
