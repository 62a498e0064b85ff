//! Docker and Podman themselves, where they are installed: a daemon of the test's own, with an image
//! that is made here, of busybox.

use std::fs;
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::Plugin;
use crate::rig::{Daemon, Out, copies, eventually, is_mounted, run, skipped, tool};

/// Counts in a file of each of the two volumes, in the first before the second; goes on where an
/// earlier one was killed.
const COUNT: &str = "i=0; j=0; [ -f /a/n ] && i=$(wc -l < /a/n); [ -f /b/n ] && j=$(wc -l < /b/n); \
    [ $j -lt $i ] && echo $i >> /b/n; \
    while :; do i=$((i+1)); echo $i >> /a/n; echo $i >> /b/n; done";

/// Makes a root file system with busybox in it; returns whether it runs there.
fn make_image(at: &Path) -> bool {
    let Some(busybox) = tool("busybox") else { return false };
    let bin = at.join("bin");
    fs::create_dir_all(&bin).unwrap();
    fs::copy(busybox, bin.join("busybox")).unwrap();
    for name in ["sh", "wc"] {
        symlink("busybox", bin.join(name)).unwrap();
    }
    let mut command = Command::new("chroot");
    let is_static = command.arg(at).args(["/bin/sh", "-c", "exit 0"]).status().is_ok_and(|it| it.success());
    if !is_static {
        skipped("busybox is not a static one (busybox-static)");
    }
    is_static
}

/// The numbers in a file of a store, which count from 1 without a gap.
fn counted(file: &Path) -> u64 {
    let text = fs::read_to_string(file).unwrap();
    assert!(text.ends_with('\n'), "cut: {:?}", text.lines().last());
    for (line, n) in text.lines().zip(1..) {
        assert_eq!(line.parse(), Ok(n), "a gap in {}", file.display());
    }
    text.lines().count() as u64
}

/// A plugin that engines find, and the stores of the volumes `first` and `second`.
struct Stores {
    plugin: Plugin,
    a: PathBuf,
    b: PathBuf,
    image: PathBuf,
}

impl Stores {
    fn new() -> Option<Self> {
        let plugin = Plugin::new()?;
        let dirs = ["a", "b", "image"].map(|name| plugin.rig.root.join(name));
        for dir in &dirs {
            fs::create_dir(dir).unwrap();
        }
        let [a, b, image] = dirs;
        make_image(&image).then_some(Self { plugin, a, b, image })
    }

    /// The image, as engines import it.
    fn tar(&self) -> PathBuf {
        let tar = self.plugin.rig.root.join("image.tar");
        let mut command = Command::new("tar");
        command.arg("-C").arg(&self.image).arg("-cf").arg(&tar).arg(".");
        run(command).ok();
        tar
    }

    /// Everything that was written is in the stores: the second has as much as the first, or one
    /// line less.
    #[track_caller]
    fn are_whole(&self) -> u64 {
        let (a, b) = (counted(&self.a.join("n")), counted(&self.b.join("n")));
        assert!(b == a || b + 1 == a, "{a} lines in the first, {b} in the second");
        a
    }

    /// Waits until the container has written more.
    #[track_caller]
    fn goes_on(&self, path: &Path) {
        let length = || fs::metadata(path).map_or(0, |meta| meta.len());
        let before = length();
        eventually("the container writes", || length() > before + 100);
    }
}

/// A dockerd.
struct Docker {
    dir: PathBuf,
    daemon: Option<Daemon>,
    socket_of_plugin: PathBuf,
}

impl Docker {
    fn start(&mut self) {
        let dir = |name: &str| self.dir.join(name);
        let mut command = Command::new("dockerd");
        command.args(["--iptables=false", "--ip6tables=false", "--bridge=none", "--storage-driver=vfs"]);
        command.args(["--containerd-namespace=wt", "--containerd-plugins-namespace=wt-plugins"]);
        command.arg("--host").arg(format!("unix://{}", dir("docker.sock").display()));
        command.arg("--data-root").arg(dir("data")).arg("--exec-root").arg(dir("exec"));
        command.arg("--pidfile").arg(dir("pid"));
        let daemon = Daemon::start(command);
        eventually("dockerd answers", || {
            assert!(Path::new(&format!("/proc/{}", daemon.pid)).exists(), "{}", daemon.stderr());
            self.run(&["version"]).code == Some(0)
        });
        self.daemon = Some(daemon);
    }

    fn run(&self, arguments: &[&str]) -> Out {
        let mut command = Command::new("docker");
        command.arg("--host").arg(format!("unix://{}", self.dir.join("docker.sock").display()));
        command.args(arguments);
        run(command)
    }
}

impl Drop for Docker {
    fn drop(&mut self) {
        if let Some(daemon) = self.daemon.take() {
            let _ = self.run(&["rm", "--force", "counter"]);
            daemon.signal(rustix::process::Signal::TERM);
            daemon.end();
        }
        let _ = fs::remove_file(&self.socket_of_plugin);
    }
}

#[test]
fn a_container_of_docker_is_removed_under_load_and_its_data_is_whole() {
    let (Some(_), Some(_)) = (tool("dockerd"), tool("docker")) else { return };
    let Some(mut stores) = Stores::new() else { return };
    let _copies = copies();
    let name = format!("wt{}", std::process::id());
    stores.plugin.socket = PathBuf::from(format!("/run/docker/plugins/{name}.sock"));
    let plugin = stores.plugin.start();
    let dir = stores.plugin.rig.root.join("docker");
    fs::create_dir(&dir).unwrap();
    let mut docker = Docker { dir, daemon: None, socket_of_plugin: stores.plugin.socket.clone() };
    docker.start();
    let tar = stores.tar();
    docker.run(&["import", tar.to_str().unwrap(), "busybox"]).ok();
    for (volume, source) in [("first", &stores.a), ("second", &stores.b)] {
        let source = format!("source={}", source.display());
        docker.run(&["volume", "create", "--driver", &name, "--opt", &source, volume]).ok();
    }
    let wrong = docker.run(&["volume", "create", "--driver", &name, "--opt", "sorce=/x", "c"]);
    wrong.ends(1, "there is no option \"sorce\"");
    let path = stores.plugin.state.join("mounts/first/n");
    let start = |docker: &Docker| {
        let run = [
            "run",
            "--detach",
            "--network=none",
            "--name=counter",
            "--volume=first:/a",
            "--volume=second:/b",
        ];
        docker.run(&[&run[..], &["busybox", "/bin/sh", "-c", COUNT]].concat()).ok();
    };

    start(&docker);
    stores.goes_on(&path);
    // Into a container that runs: mounted and unmounted once more by the same id.
    docker.run(&["cp", tar.to_str().unwrap(), "counter:/b/copied"]).ok();
    stores.goes_on(&path);
    docker.run(&["rm", "--force", "counter"]).ok();
    // On return, and not a little later.
    stores.plugin.rig.is_quiet();
    let first = stores.are_whole();
    assert_eq!(fs::read(stores.b.join("copied")).unwrap(), fs::read(&tar).unwrap());

    // The plugin is killed and started again while a container runs.
    start(&docker);
    stores.goes_on(&path);
    plugin.kill();
    stores.goes_on(&path);
    let _plugin = stores.plugin.start();
    docker.run(&["stop", "--time=0", "counter"]).ok();
    stores.plugin.rig.is_quiet();
    let second = stores.are_whole();
    assert!(second > first);

    // Docker's daemon ends and comes back, in order and by a kill.
    for is_killed in [false, true] {
        docker.run(&["start", "counter"]).ok();
        stores.goes_on(&path);
        let daemon = docker.daemon.take().unwrap();
        if is_killed {
            daemon.kill();
            // Its containerd ends with it, but may be there as a zombie where nobody reaps orphans: then
            // dockerd would take it for one that runs.
            let containerd = docker.dir.join("exec/containerd");
            let socket = containerd.join("containerd.sock");
            eventually("its containerd ends", || UnixStream::connect(&socket).is_err());
            for pid in [docker.dir.join("pid"), containerd.join("containerd.pid")] {
                fs::remove_file(pid).unwrap();
            }
        } else {
            daemon.signal(rustix::process::Signal::TERM);
            daemon.end();
            stores.plugin.rig.is_quiet();
            assert!(stores.are_whole() > second);
        }
        docker.start();
    }
    docker.run(&["start", "counter"]).ok();
    stores.goes_on(&path);
    docker.run(&["rm", "--force", "counter"]).ok();
    stores.plugin.rig.is_quiet();
    assert!(stores.are_whole() > second);
    docker.run(&["volume", "rm", "first", "second"]).ok();
    assert!(stores.are_whole() > second, "the data stays");
    assert!(!is_mounted(&stores.plugin.state.join("mounts/first")));
}

#[test]
fn a_container_of_podman_is_removed_under_load_and_its_data_is_whole() {
    let (Some(_), Some(_)) = (tool("podman"), tool("runc")) else { return };
    let Some(mut stores) = Stores::new() else { return };
    let _copies = copies();
    let _plugin = stores.plugin.start();
    let root = stores.plugin.rig.root.clone();
    let conf = root.join("containers.conf");
    fs::write(
        &conf,
        format!(
            "[engine]\nvolume_plugin_timeout = 100\n[engine.volume_plugins]\nwt = {:?}\n",
            stores.plugin.socket
        ),
    )
    .unwrap();
    let podman = |arguments: &[&str]| {
        let mut command = Command::new("podman");
        command.env("CONTAINERS_CONF", &conf).args(["--storage-driver=vfs", "--cgroup-manager=cgroupfs"]);
        command.args(["--runtime=runc", "--events-backend=none", "--log-level=error"]);
        command.arg("--root").arg(root.join("storage")).arg("--runroot").arg(root.join("podman"));
        command.arg("--tmpdir").arg(root.join("tmp")).args(arguments);
        run(command)
    };
    for (volume, source) in [("first", &stores.a), ("second", &stores.b)] {
        let source = format!("source={}", source.display());
        podman(&["volume", "create", "--driver", "wt", "--opt", &source, volume]).ok();
    }
    let path = stores.plugin.state.join("mounts/first/n");
    podman(&["import", stores.tar().to_str().unwrap(), "localhost/busybox"]).ok();
    let run = ["run", "--detach", "--network=none", "--name=counter", "--log-driver=none"];
    // Not more than a user may have who has no right to raise them.
    let limits = ["--ulimit=nofile=1024:1024", "--ulimit=nproc=1024:1024"];
    let volumes = ["--volume=first:/a", "--volume=second:/b", "localhost/busybox"];
    podman(&[&run[..], &limits[..], &volumes[..], &["/bin/sh", "-c", COUNT]].concat()).ok();
    stores.goes_on(&path);
    podman(&["rm", "--force", "--time=0", "counter"]).ok();
    stores.plugin.rig.is_quiet();
    assert!(stores.are_whole() > 0);
    podman(&["volume", "rm", "first", "second"]).ok();
    assert!(stores.are_whole() > 0, "the data stays");
}
