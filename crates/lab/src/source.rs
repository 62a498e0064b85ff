//! The modules of the workspace, as the compiler finds them: from the root of each library, program
//! and test along its `mod` items. `lab mutants` and `lab modules` read the sources by it.

pub(crate) mod checker;

use anyhow::Context as _;
use checker::Builds;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use syn::{Attribute, Expr, ExprLit, Item, ItemMod, Lit, Meta};

/// What cargo builds of a crate.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Target {
    /// The package's name, for cargo.
    pub(crate) package: String,
    /// The package's directory, from the workspace's root.
    pub(crate) directory: PathBuf,
    /// Which part of it.
    pub(crate) part: Part,
}

/// A part of a package.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Part {
    /// The library, with its unit tests.
    Library,
    /// The program `src/main.rs`.
    Program,
    /// One of `tests/`, by its name.
    Test(String),
}

impl Target {
    /// Cargo's option for it.
    pub(crate) fn option(&self) -> String {
        match &self.part {
            Part::Library => "--lib".to_owned(),
            Part::Program => "--bins".to_owned(),
            Part::Test(name) => format!("--test {name}"),
        }
    }

    /// Whether its tests are those of modules, beside what they test.
    pub(crate) fn has_unit_tests(&self) -> bool {
        !matches!(self.part, Part::Test(_))
    }
}

/// A module without the modules in it.
pub(crate) struct Module {
    pub(crate) target: Rc<Target>,
    /// Its path in the target; empty for the root.
    pub(crate) path: Vec<String>,
    /// From the workspace's root.
    pub(crate) file: PathBuf,
    pub(crate) builds: Builds,
    /// Whether it is compiled for tests only.
    pub(crate) is_of_tests: bool,
    pub(crate) items: Vec<Item>,
}

impl Module {
    /// The path of something in it, as the test program names it.
    pub(crate) fn path_of(&self, name: &str) -> String {
        let parts: Vec<&str> = self.path.iter().map(String::as_str).chain([name]).collect();
        parts.join("::")
    }
}

/// All modules of the packages in `root/crates`.
///
/// # Errors
/// If a file cannot be read or is not Rust.
pub(crate) fn all(root: &Path) -> anyhow::Result<Vec<Module>> {
    let mut modules = Vec::new();
    for directory in children(&root.join("crates"))? {
        let manifest = directory.join("Cargo.toml");
        let Ok(text) = std::fs::read_to_string(&manifest) else { continue };
        let package = package_name(&text).with_context(|| format!("no name in {}", manifest.display()))?;
        let relative = directory.strip_prefix(root).unwrap_or(&directory).to_owned();
        for (part, file) in parts(&directory)? {
            let target = Rc::new(Target { package: package.to_owned(), directory: relative.clone(), part });
            let build = Build { builds: Builds::ALL, is_of_tests: false };
            Walk { root, target, modules: &mut modules }.file(&file, Vec::new(), true, build)?;
        }
    }
    Ok(modules)
}

/// The name in a manifest's first table, which `[package]` is.
fn package_name(manifest: &str) -> Option<&str> {
    let value = manifest.lines().find_map(|line| line.strip_prefix("name = "))?;
    Some(value.trim().trim_matches('"'))
}

/// The entries of a directory, in the order of their names; none, if there is no such directory.
fn children(directory: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let entries = match directory.read_dir() {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.with_context(|| format!("cannot read {}", directory.display()))?,
    };
    let mut paths = entries.map(|entry| Ok(entry?.path())).collect::<anyhow::Result<Vec<_>>>()?;
    paths.sort();
    Ok(paths)
}

/// The roots of a package's targets, where cargo looks for them without being told.
fn parts(directory: &Path) -> anyhow::Result<Vec<(Part, PathBuf)>> {
    let mut parts =
        vec![(Part::Library, directory.join("src/lib.rs")), (Part::Program, directory.join("src/main.rs"))];
    for path in children(&directory.join("tests"))? {
        let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let file = if path.is_dir() { path.join("main.rs") } else { path };
        parts.push((Part::Test(name), file));
    }
    parts.retain(|(_, file)| file.extension().is_some_and(|extension| extension == "rs") && file.exists());
    Ok(parts)
}

/// Which builds a module is part of.
#[derive(Clone, Copy)]
struct Build {
    builds: Builds,
    is_of_tests: bool,
}

impl Build {
    fn restricted(self, attributes: &[Attribute]) -> Self {
        Self {
            builds: self.builds.restricted(attributes),
            is_of_tests: self.is_of_tests || is_of_tests(attributes),
        }
    }
}

/// Whether attributes leave something to tests: `#[cfg(test)]`, `#[cfg(all(test, …))]`, `#[test]`.
pub(crate) fn is_of_tests(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| match &attribute.meta {
        Meta::List(list) if list.path.is_ident("cfg") => {
            let text = list.tokens.to_string();
            text == "test" || text.replace(' ', "").starts_with("all(test,")
        }
        meta => meta.path().is_ident("test"),
    })
}

/// A walk through the modules of one target.
struct Walk<'a> {
    root: &'a Path,
    target: Rc<Target>,
    modules: &'a mut Vec<Module>,
}

/// Where the files of a module's own modules are.
#[derive(Clone)]
struct Place {
    file: PathBuf,
    /// Of modules with a `#[path]`.
    beside: PathBuf,
    /// Of all others.
    below: PathBuf,
}

impl Walk<'_> {
    fn file(&mut self, file: &Path, path: Vec<String>, is_root: bool, build: Build) -> anyhow::Result<()> {
        let text =
            std::fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
        let parsed = syn::parse_file(&text).with_context(|| format!("in {}", file.display()))?;
        let beside = file.parent().unwrap_or(self.root).to_owned();
        let is_directorys = is_root || file.file_stem().is_some_and(|stem| stem == "mod");
        let below = if is_directorys { beside.clone() } else { file.with_extension("") };
        let place = Place { file: file.to_owned(), beside, below };
        self.items(parsed.items, path, &place, build.restricted(&parsed.attrs))
    }

    fn items(
        &mut self,
        items: Vec<Item>,
        path: Vec<String>,
        place: &Place,
        build: Build,
    ) -> anyhow::Result<()> {
        let (mods, items) = items.into_iter().partition::<Vec<_>, _>(|item| matches!(item, Item::Mod(_)));
        let file = place.file.strip_prefix(self.root).unwrap_or(&place.file).to_owned();
        self.modules.push(Module {
            target: Rc::clone(&self.target),
            path: path.clone(),
            file,
            builds: build.builds,
            is_of_tests: build.is_of_tests,
            items,
        });
        for item in mods {
            let Item::Mod(module) = item else { continue };
            self.module(module, &path, place, build)?;
        }
        Ok(())
    }

    fn module(
        &mut self,
        module: ItemMod,
        path: &[String],
        place: &Place,
        build: Build,
    ) -> anyhow::Result<()> {
        let build = build.restricted(&module.attrs);
        let name = module.ident.to_string();
        let path = [path, std::slice::from_ref(&name)].concat();
        if let Some((_, items)) = module.content {
            let below = place.below.join(&name);
            let place = Place { file: place.file.clone(), beside: below.clone(), below };
            return self.items(items, path, &place, build);
        }
        let file = match path_attribute(&module.attrs) {
            Some(given) => place.beside.join(given),
            None => {
                let files = [place.below.join(format!("{name}.rs")), place.below.join(&name).join("mod.rs")];
                files.into_iter().find(|file| file.exists()).with_context(|| {
                    format!("{}: there is no file of the module {name}", place.file.display())
                })?
            }
        };
        // A file that an attribute names has its modules beside it, as a root has.
        let has_path = path_attribute(&module.attrs).is_some();
        self.file(&file, path, has_path, build)
    }
}

/// What `#[path = "…"]` says.
fn path_attribute(attributes: &[Attribute]) -> Option<String> {
    attributes.iter().filter(|attribute| attribute.path().is_ident("path")).find_map(text_of)
}

/// The text of an attribute like `#[doc = "…"]`.
pub(crate) fn text_of(attribute: &Attribute) -> Option<String> {
    match &attribute.meta {
        Meta::NameValue(pair) => match &pair.value {
            Expr::Lit(ExprLit { lit: Lit::Str(text), .. }) => Some(text.value()),
            _ => None,
        },
        _ => None,
    }
}
