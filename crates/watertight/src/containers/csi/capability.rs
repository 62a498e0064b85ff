//! How a volume is to be used, as a call says it.

use csi_proto::v1::VolumeCapability;
use csi_proto::v1::volume_capability::AccessType;
use csi_proto::v1::volume_capability::access_mode::Mode;

use super::allowed::NodeOptions;
use super::failure::{Failure, Result};

/// Options that a call may have, and their bytes.
const FLAGS_MAX: usize = 64;
const FLAG_BYTES_MAX: usize = 1024;
/// How often a volume that several nodes read looks for what its writer has committed.
const FOLLOW: &str = "follow=5s";

/// How a volume is used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Access {
    /// Nothing is written.
    pub(super) read_only: bool,
    /// It is read beside its holder, which may be another node.
    pub(super) shared: bool,
    /// Options of the mount.
    pub(super) flags: Vec<String>,
}

impl Access {
    /// Checks what is asked for.
    ///
    /// # Errors
    /// It is missing, or is more than a volume can be.
    pub(super) fn parse(capability: Option<&VolumeCapability>) -> Result<Self> {
        let capability = capability.ok_or_else(|| Failure::invalid("the volume's capability is missing"))?;
        let mount = match &capability.access_type {
            Some(AccessType::Mount(mount)) => mount,
            Some(AccessType::Block(_)) => {
                return Err(Failure::invalid(
                    "volumeMode Block: a volume is a file system and no block device; use Filesystem",
                ));
            }
            None => return Err(Failure::invalid("the volume's capability has no access type")),
        };
        if !matches!(mount.fs_type.as_str(), "" | "watertight") {
            return Err(Failure::invalid(format!(
                "fsType {:?}: a volume is not formatted with another file system; leave fsType out",
                mount.fs_type
            )));
        }
        let mode = capability.access_mode.as_ref().map_or(Mode::Unknown, |mode| mode.mode());
        let (read_only, shared) = match mode {
            Mode::SingleNodeWriter => (false, false),
            Mode::SingleNodeReaderOnly => (true, false),
            Mode::MultiNodeReaderOnly => (true, true),
            Mode::Unknown => return Err(Failure::invalid("the volume's capability has no access mode")),
            other => {
                return Err(Failure::invalid(format!(
                    "access mode {}: one node at a time writes to a volume; use ReadWriteOnce (SINGLE_NODE_WRITER) or \
                     ReadOnlyMany (MULTI_NODE_READER_ONLY)",
                    other.as_str_name()
                )));
            }
        };
        let flags = &mount.mount_flags;
        if flags.len() > FLAGS_MAX || flags.iter().any(|flag| flag.len() > FLAG_BYTES_MAX) {
            return Err(Failure::invalid(format!(
                "mountOptions: there are more than {FLAGS_MAX}, or one is longer than {FLAG_BYTES_MAX} bytes"
            )));
        }
        let access = Self { read_only, shared, flags: flags.clone() };
        // What the node's driver has is seen when it is mounted.
        access.options(true, &NodeOptions::of_any_node()).map(|_| access)
    }

    /// All of a call's, of which each has to be possible.
    ///
    /// # Errors
    /// There is none, or one is not.
    pub(super) fn parse_all(capabilities: &[VolumeCapability]) -> Result<Vec<Self>> {
        if capabilities.is_empty() {
            return Err(Failure::invalid("the volume's capabilities are missing"));
        }
        capabilities.iter().map(|capability| Self::parse(Some(capability))).collect()
    }

    /// The lists of options for `mount -o` on this node.
    ///
    /// # Errors
    /// One is not for authors of classes and volumes, or the node has no directory for it.
    pub(super) fn options(&self, is_object_volume: bool, node: &NodeOptions) -> Result<Vec<String>> {
        let mut lists = self.flags.clone();
        if self.read_only {
            lists.push("ro".to_owned());
        }
        let follows =
            lists.iter().flat_map(|list| list.split(',')).any(|option| option.starts_with("follow="));
        if self.shared && is_object_volume && !follows {
            lists.push(FOLLOW.to_owned());
        }
        node.mount_options(&lists, is_object_volume)
    }
}

#[cfg(test)]
mod tests {
    use csi_proto::v1::volume_capability::{AccessMode, BlockVolume, MountVolume};

    use super::*;

    fn capability(mode: Mode, fs_type: &str, flags: &[&str]) -> VolumeCapability {
        VolumeCapability {
            access_mode: Some(AccessMode { mode: mode.into() }),
            access_type: Some(AccessType::Mount(MountVolume {
                fs_type: fs_type.to_owned(),
                mount_flags: flags.iter().map(|&flag| flag.to_owned()).collect(),
                volume_mount_group: String::new(),
            })),
        }
    }

    #[test]
    fn modes_become_options() {
        let options = |mode, flags: &[&str]| {
            let access = Access::parse(Some(&capability(mode, "", flags)));
            access.and_then(|access| access.options(true, &NodeOptions::of_any_node()))
        };
        assert_eq!(options(Mode::SingleNodeWriter, &["cache=1G,noatime"]).unwrap(), ["cache=1G", "noatime"]);
        assert_eq!(options(Mode::SingleNodeReaderOnly, &[]).unwrap(), ["ro"]);
        assert_eq!(options(Mode::MultiNodeReaderOnly, &[]).unwrap(), ["ro", "follow=5s"]);
        assert_eq!(options(Mode::MultiNodeReaderOnly, &["follow=1s"]).unwrap(), ["follow=1s", "ro"]);
    }

    #[test]
    fn what_a_volume_cannot_be_is_refused_in_words() {
        let block = VolumeCapability {
            access_type: Some(AccessType::Block(BlockVolume {})),
            ..capability(Mode::SingleNodeWriter, "", &[])
        };
        let none = VolumeCapability { access_type: None, ..block.clone() };
        for (capability, word) in [
            (capability(Mode::MultiNodeMultiWriter, "", &[]), "ReadWriteOnce"),
            (capability(Mode::Unknown, "", &[]), "no access mode"),
            (capability(Mode::SingleNodeWriter, "ext4", &[]), "fsType \"ext4\""),
            (capability(Mode::SingleNodeWriter, "", &["frob"]), "no mount option frob"),
            (capability(Mode::SingleNodeWriter, "", &["journal=/etc"]), "a directory of the node"),
            (capability(Mode::SingleNodeWriter, "", &[&"a".repeat(2000)]), "longer than"),
            (block, "no block device"),
            (none, "no access type"),
        ] {
            let wrong = Access::parse(Some(&capability)).unwrap_err();
            assert!(wrong.words().contains(word), "{wrong:?}");
        }
        assert!(Access::parse(None).is_err() && Access::parse_all(&[]).is_err());
    }
}
