//! The names of a volume's objects that have numbers, and the place of the engine's.

use object_store::path::Path;

use crate::rows::Object;

/// The name of an object of the log.
pub(crate) fn log_name(number: u64) -> String {
    format!("log/{number:020}")
}

/// The number in a name as [`log_name`] makes it, without its directory.
pub(crate) fn number_of(name: &str) -> Option<u64> {
    if name.len() == 20 { name.parse().ok() } else { None }
}

/// The name of an object of data.
pub(crate) fn object_name(object: Object) -> String {
    match object {
        Object::Log(number) => log_name(number),
        Object::Segment(epoch, number) => {
            format!("seg/{:02x}/{epoch:016x}/{number:016x}", number & 0xff)
        }
    }
}

/// The segment with this name.
pub(crate) fn segment_of(name: &str) -> Option<Object> {
    let mut parts = name.strip_prefix("seg/")?.split('/').skip(1);
    let (epoch, number) = (parts.next()?, parts.next()?);
    let object = Object::Segment(u64::from_str_radix(epoch, 16).ok()?, u64::from_str_radix(number, 16).ok()?);
    // No other name of the same numbers.
    (object_name(object) == name).then_some(object)
}

/// Where the engine's objects of the volume at `root` are.
pub(crate) fn engine_path(root: &Path) -> Path {
    root.clone().join("meta")
}
