//! The questions to a kernel and a host: the use of each fact, the loss without it, and its
//! measurement.
//!
//! No answer comes from a version number, and none from a feature flag where the kernel can be seen
//! in action. A fact that could not be measured has the reason.

mod asked;
mod read;

use serde::{Deserialize, Serialize};

/// The answer of a measurement.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Answer {
    /// It is so.
    Yes,
    /// It is not so.
    No,
    /// It is this.
    Is(String),
    /// It was not measured.
    NotMeasured,
}

/// One fact as measured.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Measured {
    /// Which: [`Fact::name`].
    pub(super) fact: String,
    /// The answer.
    pub(super) answer: Answer,
    /// The observation, or why it was not measured.
    pub(super) seen: String,
}

/// The result of one measurement.
pub(super) type Found = (Answer, String);

/// One question to a host.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fact {
    /// Its name in the JSON.
    pub(super) name: &'static str,
    /// Its name for people.
    pub(super) title: &'static str,
    /// How it is measured.
    pub(super) how: &'static str,
    /// Its use in Watertight.
    pub(super) used_for: &'static str,
    /// A user's loss without it.
    pub(super) without: &'static str,
    measure: fn() -> anyhow::Result<Found>,
}

impl Fact {
    /// Measures it now.
    pub(super) fn measured(&self) -> Measured {
        let (answer, seen) =
            (self.measure)().unwrap_or_else(|error| (Answer::NotMeasured, format!("{error:#}")));
        Measured { fact: self.name.to_owned(), answer, seen }
    }
}

fn yes(seen: impl Into<String>) -> anyhow::Result<Found> {
    Ok((Answer::Yes, seen.into()))
}

fn no(seen: impl Into<String>) -> anyhow::Result<Found> {
    Ok((Answer::No, seen.into()))
}

fn is(what: impl Into<String>, seen: impl Into<String>) -> anyhow::Result<Found> {
    Ok((Answer::Is(what.into()), seen.into()))
}

/// All of them, in the order in which they are measured and shown.
pub(super) const ALL: [Fact; 26] = [
    Fact {
        name: "release",
        title: "kernel release",
        how: "uname(2)",
        used_for: "nothing: Watertight decides by what it sees, not by a number",
        without: "nothing",
        measure: read::release,
    },
    Fact {
        name: "preempt",
        title: "preemption",
        how: "the version string of uname(2)",
        used_for: "nothing; a PREEMPT_RT kernel boots with `rcu_normal`, see there",
        without: "nothing",
        measure: read::preemption,
    },
    Fact {
        name: "protocol",
        title: "FUSE protocol",
        how: "INIT of a mount",
        used_for: "all of it; 7.31 (Linux 5.4) is the oldest that is served",
        without: "no mount: an older kernel is refused with both versions in one line",
        measure: asked::protocol,
    },
    Fact {
        name: "loop",
        title: "a loop device can be had",
        how: "ioctl LOOP_CTL_GET_FREE on /dev/loop-control",
        used_for: "the block device below a mount of type `fuseblk`",
        without: "the mount is of type `fuse`, see the next",
        measure: read::loop_device,
    },
    Fact {
        name: "fuseblk",
        title: "mount of type `fuseblk`",
        how: "such a mount is made",
        used_for: "the type of every mount that root makes",
        without: "the mount is of type `fuse`: a raw umount2(2) returns before the data is on the store, and sync(2) does not reach the volume. `watertight umount`, `watertight sync` and fsync(2) keep their promises; the mount says so in one line",
        measure: asked::fuseblk,
    },
    Fact {
        name: "destroy-fuseblk",
        title: "umount2(2) waits for the server (`fuseblk`)",
        how: "the server holds the answer to DESTROY back; the call returns after the answer, or before",
        used_for: "any umount of any program returns when the data is on the store and the store is free",
        without: "only `watertight umount` waits",
        measure: asked::destroy_on_fuseblk,
    },
    Fact {
        name: "destroy-fuse",
        title: "umount2(2) waits for the server (`fuse`)",
        how: "as before, on a mount of type `fuse`",
        used_for: "nothing: it is why `fuseblk` is used",
        without: "see `fuseblk`",
        measure: asked::destroy_on_fuse,
    },
    Fact {
        name: "syncfs-fuseblk",
        title: "syncfs(2) reaches the server (`fuseblk`)",
        how: "the server holds the answer to SYNCFS back; the call returns after the answer, or before",
        used_for: "`sync -f` and syncfs(2) return when what was written is durable",
        without: "a page of the mount's device reports syncs instead, see below; the caller is not known then, and `sync_isolation` is for `watertight sync` only",
        measure: asked::syncfs_on_fuseblk,
    },
    Fact {
        name: "sync-fuseblk",
        title: "sync(2) reaches the server (`fuseblk`)",
        how: "as before, with the program `sync`",
        used_for: "sync(2) returns when what was written is durable, on every volume of the host",
        without: "as syncfs(2)",
        measure: asked::sync_on_fuseblk,
    },
    Fact {
        name: "syncfs-fuse",
        title: "syncfs(2) reaches the server (`fuse`)",
        how: "as on `fuseblk`",
        used_for: "nothing: no kernel does it yet for a server in user space that has no block device",
        without: "on a mount without root, or without a loop device, use fsync(2) or `watertight sync`",
        measure: asked::syncfs_on_fuse,
    },
    Fact {
        name: "syncs-wait",
        title: "sync(2) and syncfs(2) of a volume return when all is on its store",
        how: "a volume is mounted as root does it, a file written, `sync -f` and then `sync` called, and the store looked at",
        used_for: "what every program expects of sync(2). Where the kernel sends no SYNCFS, a page of the mount's device reports syncs",
        without: "sync(2) and syncfs(2) return at once; fsync(2), `watertight sync` and the unmount wait. The mount and `status` say so, by what they saw the kernel do",
        measure: asked::syncs_wait,
    },
    Fact {
        name: "uring",
        title: "FUSE over io_uring",
        how: "a volume in memory is mounted, and serves a file over it",
        used_for: "requests come and go without a system call of the server for each",
        without: "threads read requests from /dev/fuse: the same promises, each request costs more; `status` says which it is, and why",
        measure: asked::uring,
    },
    Fact {
        name: "uring-switch",
        title: "its switch",
        how: "/sys/module/fuse/parameters/enable_uring before anything is mounted",
        used_for: "root's mounts turn it on while they begin, and put it back",
        without: "see the row before",
        measure: read::uring_switch,
    },
    Fact {
        name: "clone",
        title: "cloned devices",
        how: "a second opening of /dev/fuse is tied to a connection, and serves it alone",
        used_for: "readers have a queue each for the requests that they have taken",
        without: "all readers share one opening and its lock",
        measure: asked::cloned,
    },
    Fact {
        name: "killpriv",
        title: "HANDLE_KILLPRIV_V2",
        how: "twenty writes on a connection that agreed to it; GETXATTR is counted",
        used_for: "the volume itself drops set-user-id bits and capabilities at a write",
        without: "the kernel asks for a capability before each write: one more request for each",
        measure: asked::killpriv,
    },
    Fact {
        name: "export",
        title: "file handles outlive the kernel's cache",
        how: "name_to_handle_at(2); caches are dropped until the kernel has forgotten the file; open_by_handle_at(2)",
        used_for: "exporting a volume by NFS, programs that keep file handles",
        without: "ESTALE once the kernel has forgotten a file",
        measure: asked::export,
    },
    Fact {
        name: "expire",
        title: "names can be expired (HAS_EXPIRE_ONLY)",
        how: "offered in INIT",
        used_for: "what is attached or detached is seen by the next look-up, and nobody inside is disturbed",
        without: "the kernel drops the name at once: mounts of others inside of it go with it",
        measure: asked::expire,
    },
    Fact {
        name: "resend",
        title: "FUSE_NOTIFY_RESEND",
        how: "the server leaves a LOOKUP unanswered and sends the notification; the request comes again",
        used_for: "`recover=on`: the server that follows one that died gets what that had not answered",
        without: "`recover=on` is refused: a mount ends with its process",
        measure: asked::resend,
    },
    Fact {
        name: "cgroup-v2",
        title: "cgroup v2",
        how: "what is mounted",
        used_for: "whose data is dirty, limits, isolation of syncs; the demo and `bench` make cgroups",
        without: "with v1 alone: the tree of the memory controller, or of another one, is used",
        measure: read::cgroup_v2,
    },
    Fact {
        name: "cgroup-v1",
        title: "cgroup v1",
        how: "a hierarchy without controllers is mounted, and taken away again",
        used_for: "the same on hosts that still have it",
        without: "nothing where v2 is there",
        measure: read::cgroup_v1,
    },
    Fact {
        name: "membarrier",
        title: "membarrier(2), private expedited",
        how: "the command is registered and called",
        used_for: "readers of Watertight's RCU run without a barrier of their own",
        without: "each section has a fence of its own: slower, not less true",
        measure: read::membarrier,
    },
    Fact {
        name: "rcu-normal",
        title: "`rcu_normal`",
        how: "/sys/kernel/rcu_normal",
        used_for: "nothing: it is of the kernel's own RCU. Where it is 1, umount2(2) of any file system waits for a whole grace period",
        without: "where it is 1, umount2(2) takes as long as the kernel's grace periods; a detach inside a mountpoint has none of them to wait for",
        measure: read::rcu_normal,
    },
    Fact {
        name: "rcu-expedited",
        title: "`rcu_expedited`",
        how: "/sys/kernel/rcu_expedited",
        used_for: "nothing, as before",
        without: "nothing",
        measure: read::rcu_expedited,
    },
    Fact {
        name: "lockdown",
        title: "lockdown",
        how: "/sys/kernel/security/lockdown",
        used_for: "nothing: no mount needs what it forbids, see below",
        without: "nothing",
        measure: read::lockdown,
    },
    Fact {
        name: "userns",
        title: "user namespaces without root",
        how: "`setpriv` to another user, then `unshare -Ur true`",
        used_for: "mounts in a user namespace (rootless containers)",
        without: "users mount by fusermount3, which is setuid root",
        measure: read::user_namespaces,
    },
    Fact {
        name: "fusermount",
        title: "fusermount3",
        how: "`fusermount3 --version`",
        used_for: "mounts without root",
        without: "only root can mount",
        measure: read::fusermount,
    },
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique() {
        let mut names: Vec<_> = ALL.iter().map(|fact| fact.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), ALL.len());
    }

    #[test]
    fn what_cannot_be_measured_says_why() {
        let fact = Fact { measure: || anyhow::bail!("no {}", "reason"), ..ALL[0] };
        let measured = fact.measured();
        assert_eq!((measured.answer, measured.seen.as_str()), (Answer::NotMeasured, "no reason"));
    }
}
