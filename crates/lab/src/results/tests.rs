//! A directory of results like the repository's, and the pages made of it.

use super::*;

const JSON: &str = include_str!("tests/drain.json");
const PUBLISHED: &str = r#"{"rows": [{"experiment": "drain", "scenario": "idle", "variant": "base", "metric": "umount",
    "unit": "ms", "of": "the kernel, 16 processors", "p50": 92.0, "p95": 123.5}]}"#;
const PAGE: &str = "# Results\n\nBy hand.\n\n<!-- lab report: drain show=origin,plot,tables,published -->\n<!-- end of report -->\n\nAlso by hand.\n";

struct Docs(tempfile::TempDir);

impl Docs {
    fn new(page: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let docs = Self(directory);
        std::fs::create_dir(docs.0.path().join("results")).unwrap();
        docs.write("RESULTS.md", page);
        docs.write("results/drain.json", JSON);
        docs.write("results/published.json", PUBLISHED);
        docs
    }

    fn write(&self, name: &str, text: &str) {
        std::fs::write(self.0.path().join(name), text).unwrap();
    }

    fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.0.path().join(name)).unwrap()
    }

    /// The names of the files that differ from what the JSON gives.
    fn differ(&self) -> Vec<String> {
        let differ = Results::read(self.0.path()).unwrap().differences().unwrap();
        differ.iter().map(|(file, _)| file.file_name().unwrap().to_str().unwrap().to_owned()).collect()
    }

    fn make(&self) {
        for (file, text) in Results::read(self.0.path()).unwrap().differences().unwrap() {
            std::fs::write(file, text).unwrap();
        }
    }

    fn refused(&self) -> String {
        let made = Results::read(self.0.path()).and_then(|results| results.differences());
        format!("{:#}", made.expect_err("refused"))
    }
}

#[test]
fn a_page_is_made_of_prose_and_json() {
    let docs = Docs::new(PAGE);
    assert_eq!(docs.differ(), ["RESULTS.md", "drain.svg"]);
    docs.make();
    assert_eq!(docs.differ(), [] as [&str; 0], "made twice is made once");
    let page = docs.read("RESULTS.md");
    assert!(
        page.starts_with("# Results\n\nBy hand.\n") && page.ends_with("-->\n\nAlso by hand.\n"),
        "{page}"
    );
    assert!(
        page.contains("Commit 0123456789ab, 2026-01-02T03:04:05Z, 2 cores of A CPU, Linux 6.18."),
        "{page}"
    );
    assert!(
        page.contains("    cargo run --release -p lab -- drain --runs 7 --json docs/results/drain.json\n"),
        "{page}"
    );
    assert!(page.contains("| idle | 2.00 (1.00) | 20.0 (10.00) |"), "{page}");
    assert!(
        page.contains("| idle | base | umount, ms | 92.0 / 124 | 20.0 / 22.0 | the kernel, 16 processors |"),
        "{page}"
    );
    assert!(docs.read("results/drain.svg").contains("prefers-color-scheme:dark"));
}

#[test]
fn a_figure_that_is_in_no_file_is_found() {
    let docs = Docs::new(PAGE);
    docs.make();
    docs.write("RESULTS.md", &docs.read("RESULTS.md").replace("20.0 (10.00)", "19.0 (9.50)"));
    assert_eq!(docs.differ(), ["RESULTS.md"]);
    docs.make();
    docs.write("results/drain.json", &JSON.replace("20.0", "21.0"));
    assert_eq!(docs.differ(), ["RESULTS.md", "drain.svg"]);
    docs.make();
    docs.write("results/published.json", &PUBLISHED.replace("92.0", "93.0"));
    assert_eq!(docs.differ(), ["RESULTS.md"]);
}

#[test]
fn the_prose_may_change() {
    let docs = Docs::new(PAGE);
    docs.make();
    docs.write("RESULTS.md", &docs.read("RESULTS.md").replace("By hand", "With a pen"));
    assert_eq!(docs.differ(), [] as [&str; 0]);
}

#[test]
fn a_file_without_a_block_gets_a_section() {
    let docs = Docs::new(PAGE);
    docs.write("results/other.json", JSON);
    docs.make();
    let page = docs.read("RESULTS.md");
    assert!(
        page.contains("\n## `other`: what does an unmount wait for?\n\n<!-- lab report: other -->\n"),
        "{page}"
    );
    assert!(page.contains("![Plot of other](results/other.svg)") && page.contains("- A note.\n"), "{page}");
    assert_eq!(docs.differ(), [] as [&str; 0]);
}

#[test]
fn rows_and_figures_can_be_chosen() {
    let show = |options: &str| {
        let docs = Docs::new(&PAGE.replace("show=origin,plot,tables,published", options));
        docs.make();
        docs.read("RESULTS.md")
    };
    let page = show("show=plot,tables scenarios=neighbours-* figures=p50,max");
    assert!(page.contains("**umount** (p50 / max, ms; less is better)"), "{page}");
    assert!(
        page.contains("| neighbours-4 | 2.00 / 4.00 | 20.0 / 24.0 |") && !page.contains("| idle |"),
        "{page}"
    );
    assert!(!page.contains("Commit"), "{page}");
    let page = show("show=plot,tables variants=base metrics=umount");
    assert!(page.contains("| | base |") && page.contains("| idle | 20.0 |"), "{page}");
}

#[test]
fn what_is_wrong_is_named_with_its_line() {
    let refused = |page: &str| Docs::new(page).refused();
    for (line, complaint) in [
        (
            "<!-- lab report: drian -->\n<!-- end of report -->",
            "RESULTS.md:1: there is no results/drian.json",
        ),
        (
            "\n<!-- lab report: drain show=plots -->\n<!-- end of report -->",
            "RESULTS.md:2: there is no part `plots`",
        ),
        ("<!-- lab report: drain figures=p42 -->", "RESULTS.md:1: there is no figure `p42`"),
        ("<!-- lab report: drain rows=2 -->", "RESULTS.md:1: `rows` is none of"),
        (
            "<!-- lab report: drain scenarios=busy -->",
            "RESULTS.md:1: results/drain.json has no row that is chosen",
        ),
        ("<!-- lab report: drain", "RESULTS.md:1: the line does not end"),
        ("<!-- lab report: drain -->", "RESULTS.md:1: the block has no end"),
        ("<!-- end of report -->", "RESULTS.md:1: no block begins"),
        ("<!-- lab report: drain -->\n<!-- lab report: drain -->", "RESULTS.md:2: a block begins inside"),
    ] {
        let said = refused(line);
        assert!(said.starts_with(complaint), "{line}: {said}");
    }
    let docs = Docs::new(PAGE);
    docs.write("results/published.json", &PUBLISHED.replace("\"ms\"", "\"s\""));
    assert!(docs.refused().contains("published in s, not in ms"), "{}", docs.refused());
    docs.write("results/published.json", &PUBLISHED.replace("p95", "p90"));
    assert!(docs.refused().contains("published.json"), "{}", docs.refused());
}

#[test]
fn figures_in_prose_are_the_files() {
    let docs = Docs::new(PAGE);
    docs.make();
    let line = "It takes <!-- drain idle persb umount p50 -->9<!----> ms (<!-- drain idle persb umount p50 in us -->9<!----> us), a \
        <!-- drain idle base umount max / drain idle persb umount max -->9<!---->th. <!-- drains are another thing --> <!-- so -->\n";
    let filled = "It takes <!-- drain idle persb umount p50 -->2.00<!----> ms (<!-- drain idle persb umount p50 in us -->2 000<!----> us), a \
        <!-- drain idle base umount max / drain idle persb umount max -->6.00<!---->th. <!-- drains are another thing --> <!-- so -->\n";
    docs.write("OTHER.md", line);
    assert_eq!(docs.differ(), ["OTHER.md"]);
    docs.make();
    assert_eq!(docs.read("OTHER.md"), filled);
    assert_eq!(docs.differ(), [] as [&str; 0]);
    for (line, complaint) in [
        ("\n<!-- drain idle persb umount p50 -->9", "line 2: `drain idle persb umount p50` has no end"),
        ("<!-- drain idle persb umount -->9<!---->", "line 1: `drain idle persb umount` is not FILE"),
        (
            "<!-- drain busy persb umount p50 -->9<!---->",
            "line 1: results/drain.json has no row of `drain busy",
        ),
        (
            "<!-- drain idle persb umount p42 -->9<!---->",
            "line 1: `drain idle persb umount p42` has no such figure",
        ),
        ("<!-- drain idle persb umount p50 in MB -->9<!---->", "line 1: `MB` is none of s, ms"),
    ] {
        docs.write("OTHER.md", line);
        let said = docs.refused();
        assert!(said.contains("OTHER.md: ") && said.contains(complaint), "{line}: {said}");
    }
}

#[test]
fn a_plot_that_is_not_shown_is_found() {
    let docs = Docs::new(&PAGE.replace("origin,plot,", "origin,"));
    assert!(docs.refused().contains("RESULTS.md shows no plot of results/drain.json"), "{}", docs.refused());
}

#[test]
fn a_plot_has_what_is_chosen_for_it() {
    let plot = |options: &str| {
        let docs = Docs::new(&PAGE.replace("show=origin,plot,tables,published", options));
        docs.make();
        (docs.read("results/drain.svg"), docs.read("RESULTS.md"))
    };
    let (whole, _) = plot("show=plot,tables");
    assert!(whole.contains(">umount, idle<") && whole.contains(">umount, neighbours-4<"), "{whole}");
    let (some, page) = plot("show=plot,tables panels=neigh*");
    assert!(!some.contains(">umount, idle<") && some.contains(">umount, neighbours-4<"), "{some}");
    assert!(page.contains("| idle | "), "the tables have all: {page}");
    let (none, _) = plot("show=plot,tables plotted=nothing");
    assert!(!none.contains("umount"), "{none}");
}

/// This repository's own.
fn own_docs() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs")
}

#[test]
fn every_experiment_has_its_results_and_the_pages_are_what_they_give() {
    let results = Results::read(&own_docs()).unwrap();
    for name in experiments::ALL.map(|experiment| experiment.name) {
        assert!(results.documents.contains_key(name), "there is no results/{name}.json");
    }
    let differ: Vec<PathBuf> = results.differences().unwrap().into_iter().map(|(file, _)| file).collect();
    assert!(differ.is_empty(), "`cargo run -p lab -- report` makes them from the JSON again: {differ:?}");
}
