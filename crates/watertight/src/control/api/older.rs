//! Keys that older processes do not send: such processes go on when the program is replaced.

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::{Cgroup, Status};

/// Stands for a missing figure, which others imply; none has so many bytes.
pub(super) const fn not_told() -> u64 {
    u64::MAX
}

impl<'de> Deserialize<'de> for Status {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        // That which is derived, not this one.
        let mut status = Self::deserialize(deserializer)?;
        if status.to_write_bytes == not_told() {
            status.to_write_bytes = status.dirty_bytes.saturating_sub(status.writeback_bytes);
        }
        Ok(status)
    }
}

impl Serialize for Status {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        Self::serialize(self, serializer)
    }
}

impl<'de> Deserialize<'de> for Cgroup {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut cgroup = Self::deserialize(deserializer)?;
        if cgroup.to_write_bytes == not_told() {
            cgroup.to_write_bytes = cgroup.dirty_bytes;
        }
        Ok(cgroup)
    }
}

impl Serialize for Cgroup {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        Self::serialize(self, serializer)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    #[test]
    fn an_older_process_has_said_what_waits_to_be_written_with_other_words() {
        let cgroup = Cgroup { dirty_bytes: 5, to_write_bytes: 5, writeback_bytes: 2, ..Cgroup::default() };
        let status = Status {
            dirty_bytes: 7,
            to_write_bytes: 4,
            writeback_bytes: 3,
            cgroups: vec![cgroup],
            ..Status::default()
        };
        let told = serde_json::to_value(&status).unwrap();
        assert_eq!(serde_json::from_value::<Status>(told.clone()).unwrap(), status);
        let mut older = told.clone();
        let without = |value: &mut Value| value.as_object_mut().unwrap().remove("to_write_bytes");
        assert_eq!(without(&mut older), Some(4.into()));
        assert_eq!(without(&mut older["cgroups"][0]), Some(5.into()));
        assert_eq!(serde_json::from_value::<Status>(older).unwrap(), status);
        // An explicit 0 is kept.
        let mut nothing = told;
        nothing["to_write_bytes"] = 0.into();
        assert_eq!(serde_json::from_value::<Status>(nothing).unwrap().to_write_bytes, 0);
    }
}
