//! Many mounts at once: a container's life, a tree that goes, an unmount that takes copies along.

use std::time::Instant;

use mounts::{Base, Error, FinalSymlink, Namespace, Propagation, Umount};

use super::names::Names;
use super::scenario::{CONTAINER, END, LAZY, UMOUNT};
use super::strategy::Engine;
use super::subject::Ours;
use crate::report::Recorder;

const ROOT: Base<'static> = Base::Root;
const VOLUMES: usize = 50;

fn words(error: Error) -> String {
    format!("failed: {error}")
}

fn attach(ns: &Namespace, path: &str) -> mounts::Result<()> {
    ns.attach(ROOT, path, &Names::mountable().1).map(drop)
}

fn milliseconds(since: Instant) -> f64 {
    since.elapsed().as_secs_f64() * 1e3
}

/// So many containers on one host, one after the other, after one that is not measured.
pub(super) fn containers(
    scenario: &str,
    variant: &str,
    (engine, containers): (Engine, u32),
    recorder: &mut Recorder,
) -> Result<(), String> {
    let host = Ours::new(variant, engine);
    container(&host)?;
    for _ in 0..containers {
        let [lazy, end, all] = container(&host)?;
        recorder.value(scenario, variant, LAZY, lazy);
        recorder.value(scenario, variant, END, end);
        recorder.value(scenario, variant, CONTAINER, all);
    }
    finish(host);
    Ok(())
}

/// A namespace is cloned, 50 volumes and a root attached, the root changed, the old one detached,
/// and all ended. How long the last two and all took.
fn container(host: &Ours) -> Result<[f64; 3], String> {
    let begun = Instant::now();
    let container = host.ns.try_clone().map_err(words)?;
    let inside = container.domain().clone();
    attach(&container, "m2").map_err(words)?;
    for volume in 0..VOLUMES {
        attach(&container, &format!("m2/m{volume}")).map_err(words)?;
    }
    container.pivot_root((ROOT, "m2"), (ROOT, "m2/d")).map_err(words)?;
    let detach = Instant::now();
    container.umount(ROOT, "d", Umount::DETACH).map_err(words)?;
    let lazy = milliseconds(detach);
    let end = Instant::now();
    container.end();
    let took = [lazy, milliseconds(end), milliseconds(begun)];
    // It may have readers of its own; and freed memory leaves more to be freed.
    super::subject::Subject::settle(host);
    (0..2).for_each(|_| inside.barrier());
    Ok(took)
}

/// So many mounts, below one that is detached.
pub(super) fn tree(
    scenario: &str,
    variant: &str,
    mounts: usize,
    recorder: &mut Recorder,
) -> Result<(), String> {
    let ours = Ours::new(variant, Engine::Expedited);
    attach(&ours.ns, "m0").map_err(words)?;
    for n in 1..mounts {
        attach(&ours.ns, &format!("m0/m{n}")).map_err(words)?;
    }
    // The callbacks of building it are not measured.
    ours.ns.domain().barrier();
    let begun = Instant::now();
    ours.ns.umount(ROOT, "m0", Umount::DETACH).map_err(words)?;
    let took = milliseconds(begun);
    recorder.value(scenario, variant, LAZY, took);
    recorder.value(scenario, variant, super::PER_MOUNT, took * 1e3 / mounts as f64);
    finish(ours);
    Ok(())
}

/// Ends a namespace, and frees its memory: no other slice should run beside that.
fn finish(ours: Ours) {
    super::subject::Subject::settle(&ours);
    let domain = ours.ns.domain().clone();
    drop(ours);
    // Freed memory leaves more to be freed.
    (0..2).for_each(|_| domain.barrier());
}

/// Something is mounted on a mount with so many peers, and unmounted.
pub(super) fn peers(
    scenario: &str,
    variant: &str,
    peers: usize,
    recorder: &mut Recorder,
) -> Result<(), String> {
    let ours = Ours::new(variant, Engine::Expedited);
    let ns = &ours.ns;
    attach(ns, "m0").map_err(words)?;
    ns.set_propagation(ROOT, "m0", Propagation::Shared, false).map_err(words)?;
    for n in 0..peers {
        ns.bind((ROOT, "m0"), (ROOT, format!("m{}", n + 2)), false).map_err(words)?;
    }
    for (is_lazy, metric) in [(false, UMOUNT), (true, LAZY)] {
        attach(ns, "m0/d").map_err(words)?;
        ns.domain().barrier();
        let begun = Instant::now();
        let flags = if is_lazy { Umount::DETACH } else { Umount::empty() };
        ns.umount(ROOT, "m0/d", flags).map_err(words)?;
        recorder.value(scenario, variant, metric, milliseconds(begun));
        super::subject::Subject::settle(&ours);
        let place = ns.resolve(ROOT, "m3/d", FinalSymlink::Follow).map_err(words)?.0;
        if ns.mounted_on(place).is_some() {
            return Err("failed: a copy is left".into());
        }
    }
    finish(ours);
    Ok(())
}
