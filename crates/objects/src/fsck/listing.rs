//! The objects with data that the bucket has, and which of them something needs.

use store::Result;

use crate::bucket::Bucket;
use crate::log::object::HEADER;
use crate::object_names::{number_of, object_name, segment_of};
use crate::rows::Object;

/// See the [module](self).
#[derive(Debug, Default)]
pub(super) struct Listing {
    /// In their order.
    objects: Vec<Listed>,
}

#[derive(Debug, Clone, Copy)]
struct Listed {
    object: Object,
    bytes: u64,
    is_own: bool,
    is_needed: bool,
}

impl Listing {
    /// Lists the objects of a volume, and those of its parents that it may need.
    pub(super) async fn read(bucket: &Bucket) -> Result<Self> {
        let mut objects = Vec::new();
        let mut places = vec![None];
        places.extend(bucket.parents().places().cloned().map(Some));
        for place in places {
            let listed = match &place {
                Some(place) => bucket.beside(place.clone()),
                None => bucket.clone(),
            };
            for dir in ["seg", "log"] {
                for (name, bytes) in listed.list_sizes(dir, None).await? {
                    let object = match dir {
                        "log" => number_of(&name).map(Object::Log),
                        _ => segment_of(&format!("{dir}/{name}")),
                    };
                    let Some(object) = object else { continue };
                    if bucket.parents().place_of(&object_name(object)) == place.as_ref() {
                        objects.push(Listed { object, bytes, is_own: place.is_none(), is_needed: false });
                    }
                }
            }
        }
        objects.sort_unstable_by_key(|listed| listed.object);
        Ok(Self { objects })
    }

    /// Says that something needs the object up to `end`; returns what is wrong with that.
    pub(super) fn need(&mut self, object: Object, end: u64) -> Result<(), String> {
        let found = self.objects.binary_search_by_key(&object, |listed| listed.object);
        let Some(listed) = found.ok().and_then(|index| self.objects.get_mut(index)) else {
            return Err("the object is missing".to_owned());
        };
        listed.is_needed = true;
        if listed.bytes < end {
            return Err(format!("the object has {} bytes, and {end} are needed", listed.bytes));
        }
        Ok(())
    }

    /// How many objects there are.
    pub(super) fn count(&self) -> u64 {
        self.objects.len() as u64
    }

    /// How many of the volume's own objects nothing needs, and their bytes: the log's only up to
    /// `replay_after`, and without fences.
    pub(super) fn unneeded(&self, replay_after: u64) -> (u64, u64) {
        let is_garbage = |listed: &&Listed| {
            let is_kept = match listed.object {
                Object::Log(number) => number > replay_after || listed.bytes <= HEADER as u64,
                Object::Segment(..) => false,
            };
            listed.is_own && !listed.is_needed && !is_kept
        };
        let garbage = self.objects.iter().filter(is_garbage);
        garbage.fold((0, 0), |(objects, bytes), listed| (objects + 1, bytes + listed.bytes))
    }
}
