//! S3, with the settings that every AWS tool takes: environment, profiles, services of the host.
//!
//! Beyond what the crate reads itself, there are profiles, `AWS_CA_BUNDLE`, and `AWS_ENDPOINT_URL`
//! with all its rules. Settings of the crate's own that would weaken a volume (`AWS_CONDITIONAL_PUT`,
//! `AWS_ALLOW_INVALID_CERTIFICATES`, its retries) are not taken.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use object_store::CredentialProvider;
use object_store::aws::{AmazonS3, AmazonS3Builder, AmazonS3ConfigKey, AwsCredential, S3ConditionalPut};
use parking_lot::Mutex;
use store::{Error, ErrorKind, Result};

use crate::client::{Clients, Connector, client_options, no_retry};
use crate::open::settings;
use crate::profile::{Files, Key, Profile, read_file};

/// The environment, by name.
pub(crate) type Environment<'a> = &'a dyn Fn(&str) -> Option<String>;

/// The longest file of certificates.
const MAX_CA_BUNDLE: u64 = 4 << 20;
/// How long a profile's key is used before the file is read again: a program may renew it there.
const KEY_AGE: Duration = Duration::from_secs(60);

/// Variables that the crate understands as they are.
const TAKEN: [&str; 12] = [
    "AWS_ROLE_SESSION_NAME",
    "AWS_ENDPOINT_URL_STS",
    "AWS_IMDSV1_FALLBACK",
    "AWS_SKIP_SIGNATURE",
    "AWS_REQUEST_PAYER",
    "AWS_UNSIGNED_PAYLOAD",
    "AWS_CHECKSUM_ALGORITHM",
    "AWS_SERVER_SIDE_ENCRYPTION",
    "AWS_SSE_KMS_KEY_ID",
    "AWS_SSE_BUCKET_KEY_ENABLED",
    "AWS_SSE_CUSTOMER_KEY_BASE64",
    "AWS_DISABLE_TAGGING",
];

fn invalid(detail: String) -> Error {
    Error::with(ErrorKind::Invalid, "open", detail)
}

/// Opens the bucket; with it, where the credentials are from, for messages.
pub(crate) fn open(
    bucket: &str,
    environment: Environment<'_>,
    clients: Clients,
) -> Result<(AmazonS3, String)> {
    let set = |name: &str| environment(name).filter(|value| !value.is_empty());
    if bucket.ends_with("--x-s3") {
        return Err(invalid(format!(
            "s3://{bucket}: a directory bucket, which lists without order; a volume needs a general purpose bucket"
        )));
    }
    let files = Files::of(environment);
    let profile = files.as_ref().map(Files::read).transpose()?.unwrap_or_default();
    let mut builder = AmazonS3Builder::new().with_bucket_name(bucket);
    for name in TAKEN {
        if let Some(value) = set(name) {
            let key = name.to_ascii_lowercase().parse::<AmazonS3ConfigKey>();
            let key = key.map_err(|error| settings("s3", &error))?;
            builder = builder.with_config(key, value);
        }
    }
    let region =
        set("AWS_REGION").or_else(|| set("AWS_DEFAULT_REGION")).or_else(|| profile.setting("region"));
    let region = region.unwrap_or_else(|| "us-east-1".to_owned());
    let endpoint = endpoint(&set, &profile, &region)?;
    let allows_http = endpoint.as_ref().is_some_and(|endpoint| is_plain_http(endpoint));
    builder = address(builder, bucket, endpoint, &profile).with_region(region);
    let (builder, from) = credentials(builder, &set, files.as_ref(), &profile)?;
    let bundle = set("AWS_CA_BUNDLE").or_else(|| profile.setting("ca_bundle"));
    let pem = bundle.map(|file| {
        let read = read_file(Path::new(&file), MAX_CA_BUNDLE);
        read.map_err(|error| invalid(format!("AWS_CA_BUNDLE: {file}: {error}")))
    });
    let built = builder
        .with_conditional_put(S3ConditionalPut::ETagMatch)
        .with_client_options(client_options(allows_http))
        .with_retry(no_retry())
        .with_http_connector(Connector::new(pem.transpose()?.as_deref(), clients)?)
        .build();
    Ok((built.map_err(|error| settings("s3", &error))?, from))
}

fn is_plain_http(endpoint: &str) -> bool {
    endpoint.get(..7).is_some_and(|start| start.eq_ignore_ascii_case("http://"))
}

/// The server, if it is not Amazon's own for the region.
fn endpoint(set: &dyn Fn(&str) -> Option<String>, profile: &Profile, region: &str) -> Result<Option<String>> {
    let is_ignored =
        set("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS").is_some_and(|value| value.eq_ignore_ascii_case("true"));
    let of_china = region.starts_with("cn-").then(|| format!("https://s3.{region}.amazonaws.com.cn"));
    let named = if is_ignored {
        None
    } else {
        let mut variables = ["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"].into_iter();
        let named = variables.find_map(|name| Some((name, set(name)?)));
        named.or_else(|| Some(("endpoint_url", profile.endpoint()?)))
    };
    let Some((name, url)) = named else { return Ok(of_china) };
    let host = url
        .split_once("://")
        .filter(|(scheme, _)| scheme.eq_ignore_ascii_case("http") || scheme.eq_ignore_ascii_case("https"));
    match host {
        Some((_, host)) if host.contains(['@', '?', '#']) || host.starts_with('/') || host.is_empty() => {
            Err(invalid(format!(
                "{name}: no user, password, query or fragment; it has to be http://HOST:PORT or https://HOST"
            )))
        }
        Some(_) => Ok(Some(url.trim_end_matches('/').to_owned())),
        None => Err(invalid(format!("{name}: it has to be http://HOST:PORT or https://HOST"))),
    }
}

/// Puts the bucket's name before Amazon's host, and into the path for every other server, unless the
/// profile says otherwise. A certificate of Amazon's does not cover a name with dots.
fn address(
    builder: AmazonS3Builder,
    bucket: &str,
    endpoint: Option<String>,
    profile: &Profile,
) -> AmazonS3Builder {
    let style = profile.setting("s3.addressing_style").unwrap_or_default();
    let is_virtual = match style.as_str() {
        "virtual" => true,
        "path" => false,
        _ => endpoint.is_none() && !bucket.contains('.'),
    };
    let builder = builder.with_virtual_hosted_style_request(is_virtual);
    match endpoint {
        None => builder,
        // The crate then takes the endpoint for the bucket's own.
        Some(endpoint) if is_virtual => {
            builder.with_endpoint(endpoint.replacen("://", &format!("://{bucket}."), 1))
        }
        Some(endpoint) => builder.with_endpoint(endpoint),
    }
}

/// Finds the credentials, in the order of the AWS tools.
fn credentials(
    builder: AmazonS3Builder,
    set: &dyn Fn(&str) -> Option<String>,
    files: Option<&Files>,
    profile: &Profile,
) -> Result<(AmazonS3Builder, String)> {
    match (set("AWS_ACCESS_KEY_ID"), set("AWS_SECRET_ACCESS_KEY")) {
        (Some(id), Some(secret)) => {
            let key = Key { id, secret, token: set("AWS_SESSION_TOKEN") };
            let provider = object_store::StaticCredentialProvider::new(AwsCredential::from(key));
            return Ok((
                builder.with_credentials(Arc::new(provider)),
                "they are from AWS_ACCESS_KEY_ID".to_owned(),
            ));
        }
        (None, None) => {}
        _ => {
            let detail =
                "one of AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY is set; it takes both, or neither";
            return Err(invalid(detail.to_owned()));
        }
    }
    let name = files.map_or("default", |files| files.profile.as_str());
    let web = |token: Option<String>, role: Option<String>| token.zip(role);
    let identity = web(set("AWS_WEB_IDENTITY_TOKEN_FILE"), set("AWS_ROLE_ARN"))
        .or_else(|| web(profile.setting("web_identity_token_file"), profile.setting("role_arn")));
    if let Some((token, role)) = identity {
        let builder = builder
            .with_config(AmazonS3ConfigKey::WebIdentityTokenFile, token)
            .with_config(AmazonS3ConfigKey::RoleArn, role);
        return Ok((
            builder,
            "they are of the role of AWS_ROLE_ARN, by AWS_WEB_IDENTITY_TOKEN_FILE".to_owned(),
        ));
    }
    if profile.setting("role_arn").is_some()
        && let Some(why) = profile.not_followed(name)
    {
        return Err(invalid(why));
    }
    if let (Some(files), Some(key)) = (files, profile.key()?) {
        let from = format!("they are from the profile `{name}` of {}", files.credentials.display());
        return Ok((builder.with_credentials(Arc::new(FromProfile::new(files.clone(), key))), from));
    }
    if let Some(why) = profile.not_followed(name) {
        return Err(invalid(why));
    }
    of_host(builder, set, files)
}

/// Credentials that a service of the host hands out.
fn of_host(
    builder: AmazonS3Builder,
    set: &dyn Fn(&str) -> Option<String>,
    files: Option<&Files>,
) -> Result<(AmazonS3Builder, String)> {
    if let Some(path) = set("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI") {
        let builder = builder.with_config(AmazonS3ConfigKey::ContainerCredentialsRelativeUri, path);
        return Ok((builder, "they are from AWS_CONTAINER_CREDENTIALS_RELATIVE_URI".to_owned()));
    }
    let full = set("AWS_CONTAINER_CREDENTIALS_FULL_URI").zip(set("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE"));
    if let Some((url, token)) = full {
        let builder = builder
            .with_config(AmazonS3ConfigKey::ContainerCredentialsFullUri, url)
            .with_config(AmazonS3ConfigKey::ContainerAuthorizationTokenFile, token);
        return Ok((builder, "they are from AWS_CONTAINER_CREDENTIALS_FULL_URI".to_owned()));
    }
    let profile = files.map_or_else(
        || "a profile (HOME is not set)".to_owned(),
        |files| {
            let (credentials, config) = (files.credentials.display(), files.config.display());
            format!("the profile `{}` of {credentials} and {config}", files.profile)
        },
    );
    let looked = format!(
        "looked for in AWS_ACCESS_KEY_ID, AWS_WEB_IDENTITY_TOKEN_FILE, {profile}, \
         AWS_CONTAINER_CREDENTIALS_RELATIVE_URI"
    );
    let is_disabled =
        set("AWS_EC2_METADATA_DISABLED").is_some_and(|value| value.eq_ignore_ascii_case("true"));
    let is_signed = !set("AWS_SKIP_SIGNATURE").is_some_and(|value| value.eq_ignore_ascii_case("true"));
    if is_disabled && is_signed {
        let detail = format!("no credentials were found; {looked} (AWS_EC2_METADATA_DISABLED is set)");
        return Err(Error::with(ErrorKind::AccessDenied, "open", detail));
    }
    let builder = match set("AWS_EC2_METADATA_SERVICE_ENDPOINT").or_else(|| set("AWS_METADATA_ENDPOINT")) {
        Some(endpoint) => builder.with_metadata_endpoint(endpoint.trim_end_matches('/')),
        None => builder,
    };
    Ok((builder, format!("{looked} and this instance's metadata service")))
}

impl From<Key> for AwsCredential {
    fn from(key: Key) -> Self {
        Self { key_id: key.id, secret_key: key.secret, token: key.token }
    }
}

/// A profile's key, which is read again now and then.
#[derive(Debug)]
struct FromProfile {
    files: Files,
    key: Mutex<(Instant, Arc<AwsCredential>)>,
}

impl FromProfile {
    fn new(files: Files, key: Key) -> Self {
        Self { files, key: Mutex::new((Instant::now(), Arc::new(key.into()))) }
    }
}

#[async_trait]
impl CredentialProvider for FromProfile {
    type Credential = AwsCredential;

    async fn get_credential(&self) -> object_store::Result<Arc<AwsCredential>> {
        let old = {
            let mut key = self.key.lock();
            if key.0.elapsed() < KEY_AGE {
                return Ok(Arc::clone(&key.1));
            }
            // The others go on with the old one meanwhile.
            key.0 = Instant::now();
            Arc::clone(&key.1)
        };
        let files = self.files.clone();
        let read =
            tokio::task::spawn_blocking(move || files.read().and_then(|profile| profile.key())).await?;
        // A file that is being written anew may be empty for a moment: the old key stays.
        let Ok(Some(key)) = read else { return Ok(old) };
        let key = Arc::new(AwsCredential::from(key));
        self.key.lock().1 = Arc::clone(&key);
        Ok(key)
    }
}

#[cfg(test)]
mod tests;
