//! Two tenants, one of them throttled.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use cgroups::{Choice, Hierarchy};

use super::say::{failed, heading, step};
use super::stage::{Demo, live, succeeded};
use super::table::Table;
use crate::term::problem::{Problem, Result};
use crate::term::shown::Show as _;
use crate::term::units;

/// The mebibytes that the throttled tenant writes.
const MEBIBYTES: u64 = 5;

pub(super) fn show(demo: &Demo, table: &mut Table) -> Result<()> {
    heading(&format!(
        "Two tenants: a may write 1 MiB a second and has {MEBIBYTES} MiB waiting; b writes a page and calls sync:"
    ));
    let tenants = match Tenants::make(demo) {
        Ok(tenants) => tenants,
        Err(why) => {
            step(&format!("not shown: it needs two cgroups, and this user can make none here ({why})"));
            table.note("sync beside a throttled tenant: not shown, it needs the right to make cgroups.");
            return Ok(());
        }
    };
    let without = tenants.sync(demo, "vanilla")?;
    step(&format!("where a sync waits for every cgroup's limit, b waits {}", units::duration(without)));
    let with = tenants.sync(demo, "boost")?;
    step(&format!("here b waits {}; what was written for it is a's debt", units::duration(with)));
    table.row("sync beside a throttled tenant", units::duration(without), units::duration(with));
    table.note("Sync, without: it waits for each owner's limit (`-o sync_policy=vanilla`).");
    Ok(())
}

/// Their cgroups' directories, and how limits name the first.
struct Tenants {
    a: PathBuf,
    b: PathBuf,
    limited: PathBuf,
}

impl Tenants {
    fn make(demo: &Demo) -> Result<Self> {
        let tree = Hierarchy::find(&Choice::Auto).ok().flatten();
        let tree = tree.ok_or_else(|| Problem::failure("no cgroup hierarchy is mounted"))?;
        let own = tree.path_of(std::process::id());
        let own = own.ok_or_else(|| Problem::failure("its own cgroup is not visible"))?;
        let both = own.join(format!("watertight-demo-{}", std::process::id()));
        let directory = tree.mountpoint().join(&both);
        let tenants = Self {
            a: directory.join("a"),
            b: directory.join("b"),
            limited: Path::new("/").join(both).join("a"),
        };
        for made in [&directory, &tenants.a, &tenants.b] {
            demo.make_cgroup(made)?;
        }
        // Whether processes may be moved there is seen by moving one.
        run(&mut inside(&tenants.a, &Command::new("true")))?;
        Ok(tenants)
    }

    /// How long b's sync takes by this policy.
    fn sync(&self, demo: &Demo, policy: &str) -> Result<Duration> {
        let options = format!("sync_policy={policy},limit={}:wbps=1M", self.limited.shown());
        let volume = demo.mount(policy, None, &options)?;
        for (cgroup, name, kibibytes) in [(&self.a, "a", MEBIBYTES << 10), (&self.b, "b", 4)] {
            let mut write = Command::new("dd");
            write.arg(format!("of={}", volume.mountpoint.join(name).shown()));
            write.args(["if=/dev/zero", "bs=4K", "status=none", &format!("count={}", kibibytes / 4)]);
            run(&mut inside(cgroup, &write))?;
        }
        let mut sync = demo.command("sync");
        sync.arg(&volume.mountpoint);
        let (synced, took) = live("b's sync", || run(&mut inside(&self.b, &sync)));
        synced?;
        demo.timed(&["umount"], &volume.mountpoint)?;
        Ok(took)
    }
}

/// The command, run in a cgroup.
fn inside(cgroup: &Path, command: &Command) -> Command {
    let mut shell = Command::new("sh");
    shell.args(["-c", "echo $$ > \"$0\" && exec \"$@\""]).arg(cgroup.join("cgroup.procs"));
    shell.arg(command.get_program()).args(command.get_args());
    shell.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
    shell
}

fn run(command: &mut Command) -> Result<()> {
    let out = command.output().map_err(|error| failed("starting a program", &error))?;
    succeeded("a tenant", &out)
}
