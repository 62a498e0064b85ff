//! Every experiment is a name, a question, variants, and a run that fills a [`Recorder`].
//!
//! A new experiment is a module with an [`Experiment`] and its name in `experiments::ALL`.

use crate::progress::Progress;
use crate::report::{Baseline, Recorder};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// One experiment of the lab.
#[derive(Debug)]
pub(crate) struct Experiment {
    /// Its name on the command line and in the JSON.
    pub(crate) name: &'static str,
    /// The question that it answers, for the help.
    pub(crate) question: &'static str,
    /// All variants and peers, the default first.
    pub(crate) variants: &'static [&'static str],
    /// All scenarios, in the order of the table.
    pub(crate) scenarios: &'static [&'static str],
    /// Those of them that run only where they are named: they take hours.
    pub(crate) campaigns: &'static [&'static str],
    /// The baseline of the ratios in the tables, if it is not the default.
    pub(crate) baseline: Option<fn() -> Baseline>,
    /// Runs every chosen scenario with every chosen variant, interleaved, and records the results.
    /// Remarks on all rows (sizes, durability, warm caches) are returned as notes. A stopped
    /// experiment returns early with its results so far. Fails only if nothing can be measured at
    /// all; a variant that fails is a row with that reason.
    pub(crate) run: fn(&Settings, &Progress, &mut Recorder) -> anyhow::Result<Vec<String>>,
}

impl Experiment {
    /// The default.
    pub(crate) fn default_variant(&self) -> &'static str {
        self.variants[0]
    }

    /// The baseline of the ratios in the tables.
    pub(crate) fn baseline(&self) -> Baseline {
        self.baseline.map_or_else(|| Baseline::Variant(self.default_variant().to_owned()), |own| own())
    }
}

/// The settings of the command line.
#[derive(Clone, Debug, Default)]
pub(crate) struct Settings {
    /// End within a minute; tails are not stable then.
    pub(crate) quick: bool,
    /// Rounds of all variants, if not the experiment's own number.
    pub(crate) runs: Option<usize>,
    /// How long it runs, in minutes, if not the experiment's own time.
    pub(crate) minutes: Option<u16>,
    /// What repeats its random choices, if not the experiment's own.
    pub(crate) seed: Option<u64>,
    /// The variants to run, in the experiment's order.
    pub(crate) variants: Vec<&'static str>,
    /// The scenarios to run, in the experiment's order.
    pub(crate) scenarios: Vec<&'static str>,
    /// Where files that variants serve should lie, if not where the experiment would put them.
    pub(crate) source: Option<PathBuf>,
    /// The program under test, if not the one of this build.
    pub(crate) program: Option<PathBuf>,
    /// Set when the user wants to stop.
    pub(crate) stop: Stop,
}

/// Set once by SIGINT or SIGTERM, checked between steps.
#[derive(Clone, Debug, Default)]
pub(crate) struct Stop(Arc<AtomicBool>);

impl Stop {
    /// Sets the flag at the first SIGINT or SIGTERM; the second one ends the process at once.
    ///
    /// # Errors
    /// If a handler cannot be installed.
    pub(crate) fn at_signals() -> std::io::Result<Self> {
        let stop = Self::default();
        for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
            // In this order: the first signal finds the flag unset and sets it, the second ends.
            signal_hook::flag::register_conditional_shutdown(signal, 130, Arc::clone(&stop.0))?;
            signal_hook::flag::register(signal, Arc::clone(&stop.0))?;
        }
        Ok(stop)
    }

    /// Whether to stop.
    pub(crate) fn is_set(&self) -> bool {
        // ORDERING: Relaxed; the flag publishes nothing and is only ever set.
        self.0.load(Ordering::Relaxed)
    }
}
