//! The keys of a volume's bucket, as an orchestrator gives them with a call. A process of this
//! program gets them in its environment, which only root can read; nothing else ever shows them.

use std::collections::BTreeMap;
use std::fmt;
use std::process::Command;

/// What may be given. Names of files and of profiles are not among it: the host's files are not the
/// caller's to name.
#[cfg(feature = "csi")]
pub const KNOWN: [&str; 13] = [
    "AWS_ACCESS_KEY_ID",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
    "AWS_REGION",
    "AWS_DEFAULT_REGION",
    "AWS_ENDPOINT_URL",
    "GOOGLE_SERVICE_ACCOUNT_KEY",
    "AZURE_STORAGE_ACCOUNT_NAME",
    "AZURE_STORAGE_ACCOUNT_KEY",
    "AZURE_STORAGE_SAS_TOKEN",
    "AZURE_CLIENT_ID",
    "AZURE_CLIENT_SECRET",
    "AZURE_TENANT_ID",
];
/// The longest value.
#[cfg(feature = "csi")]
const VALUE_BYTES_MAX: usize = 16 << 10;

/// Checked credentials; none: those of this process's own environment are used.
#[derive(Clone, Default, PartialEq, Eq)]
pub(super) struct Credentials(BTreeMap<&'static str, String>);

impl Credentials {
    /// Checks what was given. No value is repeated in an error.
    ///
    /// # Errors
    /// What is wrong.
    #[cfg(feature = "csi")]
    pub(super) fn parse<'a>(
        given: impl IntoIterator<Item = (&'a String, &'a String)>,
    ) -> Result<Self, String> {
        let mut known = BTreeMap::new();
        for (name, value) in given {
            let Some(name) = KNOWN.into_iter().find(|known| known == name) else {
                let shown: String = name.escape_debug().take(60).collect();
                return Err(format!("secret {shown}: there is no such key; there are: {}", KNOWN.join(", ")));
            };
            if value.len() > VALUE_BYTES_MAX || value.contains('\0') {
                return Err(format!("secret {name}: it is no text of at most {VALUE_BYTES_MAX} bytes"));
            }
            known.insert(name, value.clone());
        }
        let has = |name: &str| known.contains_key(name);
        if known.keys().any(|name| name.starts_with("AWS_"))
            && !(has("AWS_ACCESS_KEY_ID") && has("AWS_SECRET_ACCESS_KEY"))
        {
            // The driver's own keys are not to be used at an address that a caller names.
            return Err("secrets: AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY are both needed".to_owned());
        }
        Ok(Self(known))
    }

    /// Gives them to a process, instead of this one's of the same kind.
    pub(super) fn apply(&self, command: &mut Command) {
        for family in ["AWS_", "GOOGLE_", "AZURE_"] {
            if !self.0.keys().any(|name| name.starts_with(family)) {
                continue;
            }
            let own = std::env::vars_os().map(|(name, _)| name);
            // Those that are no text are none of ours.
            let own = own.filter_map(|name| name.into_string().ok());
            for name in own.filter(|name| name.starts_with(family)) {
                // Where the servers are, and how they are spoken to, is the host's to say.
                let is_setting = ["_REGION", "_ENDPOINT_URL", "_CA_BUNDLE", "_BASE_URL", "_ENDPOINT"];
                if !is_setting.iter().any(|end| name.ends_with(end)) {
                    command.env_remove(name);
                }
            }
        }
        command.envs(&self.0);
    }
}

impl fmt::Debug for Credentials {
    /// Names alone.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

#[cfg(all(test, feature = "csi"))]
mod tests {
    use super::*;

    fn parse(given: &[(&str, &str)]) -> Result<Credentials, String> {
        let given: Vec<_> =
            given.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        Credentials::parse(given.iter().map(|(name, value)| (name, value)))
    }

    #[test]
    fn keys_are_taken_and_nothing_shows_them() {
        let keys = parse(&[("AWS_ACCESS_KEY_ID", "id"), ("AWS_SECRET_ACCESS_KEY", "hidden")]).unwrap();
        assert_eq!(format!("{keys:?}"), r#"{"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"}"#);
        let mut command = Command::new("true");
        keys.apply(&mut command);
        let has = |name: &str, value: &str| {
            command.get_envs().any(|(n, v)| n == name && v.is_some_and(|v| v == value))
        };
        assert!(has("AWS_ACCESS_KEY_ID", "id") && has("AWS_SECRET_ACCESS_KEY", "hidden"));
        assert_eq!(parse(&[]).unwrap(), Credentials::default());
    }

    #[test]
    fn what_names_a_file_of_the_host_or_half_a_key_is_refused() {
        for (given, word) in [
            (&[("AWS_SHARED_CREDENTIALS_FILE", "hidden")][..], "no such key"),
            (&[("GOOGLE_APPLICATION_CREDENTIALS", "hidden")], "no such key"),
            (&[("LD_PRELOAD", "hidden")], "no such key"),
            (&[("a\nb", "hidden")], "no such key"),
            (&[("AWS_ENDPOINT_URL", "hidden")], "both needed"),
            (&[("AWS_ACCESS_KEY_ID", "hidden")], "both needed"),
            (&[("AZURE_CLIENT_ID", "hidden\0")], "no text"),
        ] {
            let wrong = parse(given).unwrap_err();
            assert!(wrong.contains(word) && !wrong.contains("hidden") && !wrong.contains('\n'), "{wrong}");
        }
    }
}
