//! Opens the bucket that a [`Url`] names.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock};

use object_store::ObjectStore;
use object_store::azure::MicrosoftAzureBuilder;
use object_store::gcp::GoogleCloudStorageBuilder;
use object_store::memory::InMemory;
use parking_lot::Mutex;
use store::{Error, ErrorKind, Result};

use crate::aws;
use crate::bucket::Bucket;
use crate::client::{Clients, Connector, client_options, no_retry};
use crate::directory::Directory;
use crate::problem::About;
use crate::runtime::BulkThreads;
use crate::url::{Scheme, Url};

/// The stores of `memory://`, by name, as long as the process lives.
static MEMORY: LazyLock<Mutex<HashMap<String, Arc<InMemory>>>> = LazyLock::new(Mutex::default);
/// How many of them there may be.
const MAX_MEMORY: usize = 4096;

/// The bucket of `url`, whose requests are all sent on one runtime. No request is sent; files of
/// credentials and certificates are read, so that the caller is not an async task.
///
/// # Errors
/// Settings that make no sense, with the name of each. Whether the bucket is there, the first
/// request says.
pub fn open_bucket(url: &Url) -> Result<Bucket> {
    open_with(url, Clients::Own, &|name| std::env::var(name).ok())
}

/// As [`open_bucket`]; of an S3 bucket the settings are these variables' and not the process's.
///
/// # Errors
/// As there.
pub fn open_bucket_in(url: &Url, environment: &dyn Fn(&str) -> Option<String>) -> Result<Bucket> {
    open_with(url, Clients::Own, environment)
}

/// As [`open_bucket`], whose requests are all sent on the process's runtime.
pub(crate) fn open_shared(url: &Url) -> Result<Bucket> {
    open_with(url, Clients::Shared, &|name| std::env::var(name).ok())
}

fn open_with(url: &Url, clients: Clients, environment: &dyn Fn(&str) -> Option<String>) -> Result<Bucket> {
    let mut about = About { url: url.to_string(), credentials: String::new() };
    let mut root = url.prefix().clone();
    let store: Arc<dyn ObjectStore> = match url.scheme() {
        Scheme::S3 => {
            let (store, from) = aws::open(url.bucket(), environment, clients)?;
            about.credentials = from;
            Arc::new(store)
        }
        Scheme::Gs => {
            "looked for in GOOGLE_SERVICE_ACCOUNT, GOOGLE_APPLICATION_CREDENTIALS, gcloud's default login and this \
             instance's metadata service"
                .clone_into(&mut about.credentials);
            google(url.bucket(), clients)?
        }
        Scheme::Az => {
            "looked for in AZURE_STORAGE_ACCOUNT_NAME, AZURE_STORAGE_ACCOUNT_KEY, AZURE_CLIENT_ID and what belongs \
             to it"
                .clone_into(&mut about.credentials);
            azure(url.bucket(), clients)?
        }
        Scheme::Memory => memory(url.bucket())?,
        Scheme::File => {
            let (store, path) = Directory::open(&url.directory().unwrap_or_default())?;
            root = path;
            Arc::new(store)
        }
    };
    let bucket = Bucket::opened(store, root, about);
    Ok(match clients {
        Clients::Shared => bucket.with_bulk_threads(BulkThreads::of_process()?),
        Clients::Own => bucket,
    })
}

fn memory(name: &str) -> Result<Arc<dyn ObjectStore>> {
    let mut stores = MEMORY.lock();
    if stores.len() >= MAX_MEMORY && !stores.contains_key(name) {
        return Err(Error::with(ErrorKind::NoMemory, "open", "too many memory:// stores in this process"));
    }
    Ok(Arc::clone(stores.entry(name.to_owned()).or_default()) as _)
}

/// Plain HTTP where the variable that names the endpoint asks for it.
fn is_plain_http(variables: &[&str]) -> bool {
    variables.iter().any(|name| {
        std::env::var(name)
            .is_ok_and(|url| url.get(..7).is_some_and(|start| start.eq_ignore_ascii_case("http://")))
    })
}

fn google(bucket: &str, clients: Clients) -> Result<Arc<dyn ObjectStore>> {
    let allows_http = is_plain_http(&["GOOGLE_BASE_URL"]);
    let built = GoogleCloudStorageBuilder::from_env()
        .with_bucket_name(bucket)
        .with_client_options(client_options(allows_http))
        .with_retry(no_retry())
        .with_http_connector(Connector::new(None, clients)?)
        .build();
    Ok(Arc::new(built.map_err(|error| settings("gs", &error))?))
}

fn azure(container: &str, clients: Clients) -> Result<Arc<dyn ObjectStore>> {
    let emulator =
        std::env::var("AZURE_STORAGE_USE_EMULATOR").is_ok_and(|value| value == "true" || value == "1");
    let allows_http = emulator || is_plain_http(&["AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT"]);
    let built = MicrosoftAzureBuilder::from_env()
        .with_container_name(container)
        .with_client_options(client_options(allows_http))
        .with_retry(no_retry())
        .with_http_connector(Connector::new(None, clients)?)
        .build();
    Ok(Arc::new(built.map_err(|error| settings("az", &error))?))
}

/// A store that cannot be made from its settings.
pub(crate) fn settings(scheme: &str, error: &object_store::Error) -> Error {
    Error::with(ErrorKind::Invalid, "open", format!("{scheme}://: {error}"))
}

#[cfg(test)]
mod tests {
    use object_store::PutPayload;

    use super::*;

    #[tokio::test]
    async fn memory_is_shared_by_name() {
        let open = |url: &str| open_bucket(&url.parse().unwrap()).unwrap();
        let one = open("memory://open-shared/a");
        let _ = one.create("x", PutPayload::from_static(b"x")).await.unwrap();
        assert_eq!(open("memory://open-shared/a").list("", None).await.unwrap(), ["x"]);
        assert!(open("memory://open-shared/b").list("", None).await.unwrap().is_empty());
        assert!(open("memory://open-other/a").list("", None).await.unwrap().is_empty());
    }
}
