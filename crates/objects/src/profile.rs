//! The profiles of the AWS tools: `~/.aws/credentials` and `~/.aws/config`.
//!
//! Both are files of sections of `name = value`. What is read of them is bounded, and what they name
//! (a program that prints credentials, another profile, a browser's login) is not followed but named
//! in a message, with what works instead.

use std::collections::HashMap;
use std::io::{ErrorKind as IoErrorKind, Read as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use store::{Error, ErrorKind, Result};

use crate::aws::Environment;

/// The largest file that is read.
const MAX_FILE: u64 = 1 << 20;

/// What a profile asks for that only the AWS tools themselves can do.
const NOT_FOLLOWED: [(&str, &str); 5] = [
    ("credential_process", "a program that prints credentials"),
    ("sso_session", "a login by SSO"),
    ("sso_start_url", "a login by SSO"),
    ("source_profile", "a role of another profile"),
    ("credential_source", "a role of this host"),
];

/// The values of one section, by lower-case name.
type Section = HashMap<String, String>;

/// Where the files are, and which profile is meant.
#[derive(Debug, Clone)]
pub(crate) struct Files {
    pub(crate) credentials: PathBuf,
    pub(crate) config: PathBuf,
    pub(crate) profile: String,
    /// The environment names a profile, which has to be there, then.
    is_named: bool,
}

impl Files {
    /// `None`: neither is named, and there is no home directory.
    pub(crate) fn of(environment: Environment<'_>) -> Option<Self> {
        let set = |name: &str| environment(name).filter(|value| !value.is_empty());
        let home = set("HOME").map(PathBuf::from);
        let file = |variable: &str, name: &str| {
            let named = set(variable).map(|path| match (path.strip_prefix("~/"), &home) {
                (Some(rest), Some(home)) => home.join(rest),
                _ => PathBuf::from(path),
            });
            named.or_else(|| Some(home.as_ref()?.join(".aws").join(name)))
        };
        let named = set("AWS_PROFILE").or_else(|| set("AWS_DEFAULT_PROFILE"));
        Some(Self {
            credentials: file("AWS_SHARED_CREDENTIALS_FILE", "credentials")?,
            config: file("AWS_CONFIG_FILE", "config")?,
            is_named: named.is_some(),
            profile: named.unwrap_or_else(|| "default".to_owned()),
        })
    }

    /// Reads the profile; a file that is not there is empty.
    pub(crate) fn read(&self) -> Result<Profile> {
        let credentials = sections(&read(&self.credentials)?);
        let mut config = sections(&read(&self.config)?);
        let named = config.remove(&format!("profile {}", self.profile));
        let from_config = named.or_else(|| config.remove(&self.profile));
        let from_credentials = credentials.into_iter().find(|(name, _)| *name == self.profile);
        if self.is_named && from_config.is_none() && from_credentials.is_none() {
            return Err(invalid(format!(
                "AWS_PROFILE: there is no profile `{}` in {} and {}",
                self.profile,
                self.credentials.display(),
                self.config.display()
            )));
        }
        let from_config = from_config.unwrap_or_default();
        let services =
            from_config.get("services").and_then(|name| config.remove(&format!("services {name}")));
        Ok(Profile {
            credentials: from_credentials.map(|(_, section)| section).unwrap_or_default(),
            config: from_config,
            services: services.unwrap_or_default(),
        })
    }
}

/// A profile's values. Of credentials, those in the file of that name count first.
#[derive(Default)]
pub(crate) struct Profile {
    credentials: Section,
    config: Section,
    services: Section,
}

/// An access key.
pub(crate) struct Key {
    pub(crate) id: String,
    pub(crate) secret: String,
    pub(crate) token: Option<String>,
}

impl Profile {
    fn value(section: &Section, name: &str) -> Option<String> {
        section.get(name).filter(|value| !value.is_empty()).cloned()
    }

    /// The key, if the profile has one.
    pub(crate) fn key(&self) -> Result<Option<Key>> {
        for section in [&self.credentials, &self.config] {
            let (id, secret) =
                (Self::value(section, "aws_access_key_id"), Self::value(section, "aws_secret_access_key"));
            match (id, secret) {
                (Some(id), Some(secret)) => {
                    let token = Self::value(section, "aws_session_token");
                    return Ok(Some(Key { id, secret, token }));
                }
                (None, None) => {}
                _ => {
                    let detail = "a profile of ~/.aws has one of aws_access_key_id and aws_secret_access_key, not both";
                    return Err(invalid(detail.to_owned()));
                }
            }
        }
        Ok(None)
    }

    /// A setting of the file `config`, which the file of credentials may have as well.
    pub(crate) fn setting(&self, name: &str) -> Option<String> {
        Self::value(&self.config, name).or_else(|| Self::value(&self.credentials, name))
    }

    /// The endpoint: that of S3 first.
    pub(crate) fn endpoint(&self) -> Option<String> {
        Self::value(&self.services, "s3.endpoint_url").or_else(|| self.setting("endpoint_url"))
    }

    /// What the profile asks for that is not done here, and what works instead.
    pub(crate) fn not_followed(&self, profile: &str) -> Option<String> {
        let (name, what) = NOT_FOLLOWED.iter().find(|(name, _)| self.setting(name).is_some())?;
        Some(format!(
            "the profile `{profile}` names {what} ({name}), which only the AWS tools follow; this puts its \
             credentials into the environment: eval \"$(aws configure export-credentials --profile {profile} \
             --format env)\""
        ))
    }
}

fn invalid(detail: String) -> Error {
    Error::with(ErrorKind::Invalid, "open", detail)
}

/// A regular file's text; empty, if it is not there.
fn read(path: &Path) -> Result<String> {
    let wrong = |why: String| invalid(format!("{}: {why}", path.display()));
    let bytes = match read_file(path, MAX_FILE) {
        Ok(bytes) => bytes,
        Err(error) if matches!(error.kind(), IoErrorKind::NotFound | IoErrorKind::NotADirectory) => {
            Vec::new()
        }
        Err(error) => return Err(wrong(error.to_string())),
    };
    String::from_utf8(bytes).map_err(|_| wrong("not UTF-8".to_owned()))
}

/// Reads a regular file of at most `most` bytes: a FIFO or a device might not end.
pub(crate) fn read_file(path: &Path, most: u64) -> std::io::Result<Vec<u8>> {
    let other = |why: String| Err(std::io::Error::other(why));
    // Without the flag, the opening of a FIFO waits.
    let flags = rustix::fs::OFlags::NONBLOCK.bits().cast_signed();
    let file = std::fs::OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    if !file.metadata()?.is_file() {
        return other("not a regular file".to_owned());
    }
    let mut bytes = Vec::new();
    file.take(most + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > most {
        return other(format!("larger than {} KiB", most >> 10));
    }
    Ok(bytes)
}

/// The sections of a file. A value of several indented lines (`s3 =`, then `  endpoint_url = …`) has
/// them as `s3.endpoint_url`. What cannot be read is passed over, as the AWS tools do.
fn sections(text: &str) -> HashMap<String, Section> {
    let mut sections: HashMap<String, Section> = HashMap::new();
    let mut current = None;
    let mut outer = String::new();
    for line in text.lines() {
        let trimmed = line.trim();
        if trimmed.is_empty() || trimmed.starts_with(['#', ';']) {
            continue;
        }
        if let Some(name) = trimmed.strip_prefix('[').and_then(|rest| rest.split(']').next()) {
            let name = name.split_whitespace().collect::<Vec<_>>().join(" ");
            current = Some(name.clone());
            sections.entry(name).or_default();
            outer.clear();
            continue;
        }
        let (Some(section), Some((name, value))) =
            (current.as_ref().and_then(|name| sections.get_mut(name)), trimmed.split_once('='))
        else {
            continue;
        };
        let name = name.trim().to_ascii_lowercase();
        // A comment behind a value begins with a blank.
        let value = value.split(" #").next().unwrap_or_default();
        let value = value.split(" ;").next().unwrap_or_default().trim().to_owned();
        if line.starts_with([' ', '\t']) && !outer.is_empty() {
            section.insert(format!("{outer}.{name}"), value);
        } else {
            outer = if value.is_empty() { name.clone() } else { String::new() };
            section.insert(name, value);
        }
    }
    sections
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files(directory: &Path, profile: Option<&str>) -> Files {
        let home = directory.display().to_string();
        let profile = profile.map(str::to_owned);
        Files::of(&move |name| match name {
            "HOME" => Some(home.clone()),
            "AWS_PROFILE" => profile.clone(),
            _ => None,
        })
        .unwrap()
    }

    fn home(credentials: &str, config: &str) -> tempfile::TempDir {
        let home = tempfile::tempdir().unwrap();
        std::fs::create_dir(home.path().join(".aws")).unwrap();
        std::fs::write(home.path().join(".aws/credentials"), credentials).unwrap();
        std::fs::write(home.path().join(".aws/config"), config).unwrap();
        home
    }

    #[test]
    fn a_profile_is_read_from_both_files() {
        let home = home(
            "# keys\n[default]\naws_access_key_id=A\naws_secret_access_key = s/+= x #not\n\n[ other ]\n\
             AWS_ACCESS_KEY_ID = B\naws_secret_access_key = t\naws_session_token = u\n",
            "[default]\nregion = eu-west-1 ; comment\n[profile other]\nregion = eu-north-1\nservices = mine\n\
             s3 =\n  addressing_style = virtual\nendpoint_url = https://all\n\
             [services mine]\nsts =\n  endpoint_url = https://sts\ns3 =\n\tendpoint_url = https://s3\n",
        );
        let default = files(home.path(), None).read().unwrap();
        let key = default.key().unwrap().unwrap();
        assert_eq!((key.id.as_str(), key.secret.as_str(), key.token), ("A", "s/+= x", None));
        assert_eq!(default.setting("region").unwrap(), "eu-west-1");
        assert_eq!(default.endpoint(), None);
        let other = files(home.path(), Some("other")).read().unwrap();
        let key = other.key().unwrap().unwrap();
        assert_eq!((key.id.as_str(), key.secret.as_str(), key.token.as_deref()), ("B", "t", Some("u")));
        assert_eq!(other.setting("s3.addressing_style").unwrap(), "virtual");
        assert_eq!(other.endpoint().unwrap(), "https://s3");
    }

    #[test]
    fn files_that_are_not_there_are_empty_but_a_named_profile_has_to_be_there() {
        let home = tempfile::tempdir().unwrap();
        assert!(files(home.path(), None).read().unwrap().key().unwrap().is_none());
        let error = files(home.path(), Some("x")).read().err().unwrap();
        assert!(error.detail().unwrap().contains("there is no profile `x`"));
    }

    #[test]
    fn what_is_not_followed_is_named_with_what_works() {
        let home = home(
            "",
            "[profile sso]\nsso_session = x\n[profile role]\nsource_profile = default\nrole_arn = r\n",
        );
        for (profile, part) in [("sso", "SSO"), ("role", "another profile")] {
            let read = files(home.path(), Some(profile)).read().unwrap();
            let message = read.not_followed(profile).unwrap();
            assert!(message.contains(part) && message.contains("export-credentials"), "{message}");
        }
    }

    #[test]
    fn hostile_files_are_refused() {
        let home = home("[default]\naws_access_key_id = A\n", "");
        let refusal = || {
            let read = files(home.path(), None).read().and_then(|profile| profile.key());
            read.err().unwrap().detail().unwrap().to_owned()
        };
        assert!(refusal().contains("not both"));
        let credentials = home.path().join(".aws/credentials");
        std::fs::write(&credentials, vec![b'#'; usize::try_from(MAX_FILE).unwrap() + 1]).unwrap();
        assert!(refusal().contains("larger than 1024 KiB"));
        std::fs::write(&credentials, b"[default]\n\xff").unwrap();
        assert!(refusal().contains("not UTF-8"));
        std::fs::remove_file(&credentials).unwrap();
        rustix::fs::mkfifoat(rustix::fs::CWD, &credentials, rustix::fs::Mode::RUSR).unwrap();
        assert!(refusal().contains("not a regular file"));
    }
}
