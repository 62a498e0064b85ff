//! Which settings are found, and which refused.

use std::collections::HashMap;

use object_store::aws::AmazonS3;
use store::{ErrorKind, Result};

use super::open;
use crate::client::Clients;

fn opened(bucket: &str, environment: &[(&str, &str)]) -> Result<(AmazonS3, String)> {
    let environment: HashMap<_, _> = environment.iter().copied().collect();
    open(bucket, &|name| environment.get(name).map(|value| (*value).to_owned()), Clients::Own)
}

const KEY: [(&str, &str); 2] = [("AWS_ACCESS_KEY_ID", "A"), ("AWS_SECRET_ACCESS_KEY", "very-secret")];

fn with_key(more: &[(&'static str, &'static str)]) -> Vec<(&'static str, &'static str)> {
    KEY.iter().chain(more).copied().collect()
}

/// The address of an object, as the crate makes it.
fn address(bucket: &str, environment: &[(&str, &str)]) -> String {
    use object_store::signer::Signer as _;
    let (store, _) = opened(bucket, environment).unwrap();
    let path = object_store::path::Path::from("x");
    let signed = store.signed_url(reqwest::Method::GET, &path, std::time::Duration::from_secs(1));
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let url = runtime.block_on(signed).unwrap();
    url.as_str().split('?').next().unwrap().to_owned()
}

#[test]
fn the_bucket_s_address_follows_endpoint_region_and_name() {
    for (bucket, more, expected) in [
        ("b", &[][..], "https://b.s3.us-east-1.amazonaws.com/x"),
        (
            "b",
            &[("AWS_REGION", "eu-west-1"), ("AWS_DEFAULT_REGION", "no")],
            "https://b.s3.eu-west-1.amazonaws.com/x",
        ),
        ("b", &[("AWS_DEFAULT_REGION", "eu-west-1")], "https://b.s3.eu-west-1.amazonaws.com/x"),
        ("b.c", &[], "https://s3.us-east-1.amazonaws.com/b.c/x"),
        ("b", &[("AWS_REGION", "cn-north-1")], "https://s3.cn-north-1.amazonaws.com.cn/b/x"),
        ("b", &[("AWS_ENDPOINT_URL", "http://127.0.0.1:8333/")], "http://127.0.0.1:8333/b/x"),
        (
            "b",
            &[("AWS_ENDPOINT_URL", "https://all"), ("AWS_ENDPOINT_URL_S3", "https://s3.example")],
            "https://s3.example/b/x",
        ),
        (
            "b",
            &[("AWS_ENDPOINT_URL", "https://all"), ("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS", "true")],
            "https://b.s3.us-east-1.amazonaws.com/x",
        ),
    ] {
        assert_eq!(address(bucket, &with_key(more)), expected);
    }
}

#[test]
fn a_profile_gives_key_region_and_endpoint() {
    let home = tempfile::tempdir().unwrap();
    std::fs::create_dir(home.path().join(".aws")).unwrap();
    std::fs::write(
        home.path().join(".aws/credentials"),
        "[default]\naws_access_key_id = A\naws_secret_access_key = s\n",
    )
    .unwrap();
    std::fs::write(
        home.path().join(".aws/config"),
        "[default]\nendpoint_url = http://store.test:1\ns3 =\n  addressing_style = virtual\n",
    )
    .unwrap();
    let environment = [("HOME", home.path().to_str().unwrap())];
    let (_, from) = opened("b", &environment).unwrap();
    assert!(from.contains("the profile `default`"), "{from}");
    assert_eq!(address("b", &environment), "http://b.store.test:1/x");
}

#[test]
fn what_makes_no_sense_is_refused() {
    let refusal = |bucket: &str, environment: &[(&str, &str)]| {
        let error = opened(bucket, environment).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::Invalid | ErrorKind::AccessDenied));
        let detail = error.detail().unwrap().to_owned();
        assert!(!detail.contains("secret@") && !detail.contains("very-secret"), "{detail}");
        detail
    };
    for endpoint in
        ["127.0.0.1:8333", "ftp://x", "https://", "https://user:secret@host", "https://host?x=secret@"]
    {
        assert!(refusal("b", &with_key(&[])[..1]).contains("both"));
        let environment: Vec<_> = KEY.into_iter().chain([("AWS_ENDPOINT_URL", endpoint)]).collect();
        assert!(refusal("b", &environment).contains("http://HOST:PORT"), "{endpoint}");
    }
    assert!(refusal("b--use1-az1--x-s3", &KEY).contains("directory bucket"));
    assert!(refusal("b", &with_key(&[("AWS_CA_BUNDLE", "/nowhere")])).contains("AWS_CA_BUNDLE: /nowhere"));
    let none = refusal("b", &[("AWS_EC2_METADATA_DISABLED", "true"), ("HOME", "/nowhere")]);
    assert!(none.contains("no credentials") && none.contains("/nowhere/.aws/credentials"), "{none}");
}

#[test]
fn settings_that_would_weaken_a_volume_are_not_taken() {
    let environment =
        with_key(&[("AWS_CONDITIONAL_PUT", "disabled"), ("AWS_ALLOW_INVALID_CERTIFICATES", "true")]);
    let (store, _) = opened("b", &environment).unwrap();
    let settings = format!("{store:?}");
    assert!(settings.contains("conditional_put: ETagMatch"), "{settings}");
    assert!(settings.contains("allow_invalid_certificates: Parsed(false)"), "{settings}");
    assert!(!settings.contains("very-secret"));
}
