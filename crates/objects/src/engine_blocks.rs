//! The engine's blocks, sealed: names and attributes are encrypted in its files.
//!
//! The engine does not say which block of which file it asks for, so that a block is bound to the
//! volume alone. What it keeps outside of blocks is not encrypted: the first and the last key of
//! each file, in the file's end and in the manifest.

use async_trait::async_trait;
use bytes::Bytes;
use slatedb::{BlockTransformer, Error};

use crate::codec::Codec;

/// What a block is bound to, beside the volume.
const CONTEXT: &[u8] = b"engine block";

/// Seals and opens the blocks of the engine's files. A volume without a key needs none: the engine
/// has checksums of its own.
#[derive(Debug, Clone)]
pub struct Blocks(Codec);

impl Blocks {
    /// Blocks that `codec` seals.
    #[must_use]
    pub fn new(codec: Codec) -> Self {
        Self(codec)
    }
}

#[async_trait]
impl BlockTransformer for Blocks {
    async fn encode(&self, data: Bytes) -> Result<Bytes, Error> {
        Ok(self.0.seal(CONTEXT, &data))
    }

    async fn decode(&self, data: Bytes) -> Result<Bytes, Error> {
        self.0.open(CONTEXT, &data).map_err(|error| Error::data(error.to_string()))
    }

    fn encoded_overhead(&self) -> usize {
        self.0.overhead()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use futures_util::TryStreamExt as _;
    use object_store::memory::InMemory;
    use object_store::{ObjectStore, ObjectStoreExt as _};
    use slatedb::Db;
    use slatedb::config::{FlushOptions, FlushType};

    use super::*;
    use crate::codec::Compression;
    use crate::crypto::DataKey;

    fn blocks(key: Option<&DataKey>) -> Arc<Blocks> {
        Arc::new(Blocks::new(Codec::new([7; 16], Compression::None, key)))
    }

    /// A database with three rows, of which the middle one is secret, in files.
    async fn database(blocks: Arc<Blocks>) -> Arc<dyn ObjectStore> {
        let bucket: Arc<dyn ObjectStore> = Arc::new(InMemory::new());
        let builder = Db::builder("db", Arc::clone(&bucket)).with_block_transformer(blocks);
        let db = builder.build().await.unwrap();
        for (name, value) in [("first", "1"), ("secret-name", "secret-value"), ("third", "3")] {
            db.put(name, value).await.unwrap();
        }
        db.flush_with_options(FlushOptions { flush_type: FlushType::MemTable }).await.unwrap();
        db.close().await.unwrap();
        bucket
    }

    /// Whether any object of the bucket has `text` in it.
    async fn is_seen(bucket: &dyn ObjectStore, text: &[u8]) -> bool {
        let objects: Vec<_> = bucket.list(None).try_collect().await.unwrap();
        assert!(objects.iter().any(|object| object.location.as_ref().contains("compacted")), "{objects:?}");
        for object in objects {
            let bytes = bucket.get(&object.location).await.unwrap().bytes().await.unwrap();
            if bytes.windows(text.len()).any(|window| window == text) {
                return true;
            }
        }
        false
    }

    /// With a key neither a row's name nor its value is in the bucket; the first and the last name
    /// of a file are, as the module's head says.
    #[tokio::test]
    async fn rows_are_encrypted_and_come_back() {
        let key = DataKey::random();
        for (key, is_plain) in [(None, true), (Some(&key), false)] {
            let bucket = database(blocks(key)).await;
            assert_eq!(is_seen(&*bucket, b"secret-name").await, is_plain);
            assert_eq!(is_seen(&*bucket, b"secret-value").await, is_plain);
            assert!(is_seen(&*bucket, b"third").await);
            let db = Db::builder("db", bucket).with_block_transformer(blocks(key)).build().await.unwrap();
            assert_eq!(db.get("secret-name").await.unwrap().unwrap(), "secret-value");
            db.close().await.unwrap();
        }
    }

    #[tokio::test]
    async fn rows_of_another_key_are_an_error() {
        let bucket = database(blocks(Some(&DataKey::random()))).await;
        let other = blocks(Some(&DataKey::random()));
        let read = async {
            let db = Db::builder("db", bucket).with_block_transformer(other).build().await?;
            db.get("secret-name").await
        };
        let error = read.await.unwrap_err();
        assert!(error.to_string().contains("error transforming block"), "{error}");
    }

    #[test]
    fn the_overhead_is_what_a_block_grows_by() {
        let key = DataKey::random();
        for blocks in [blocks(None), blocks(Some(&key))] {
            let sealed = futures_executor::block_on(blocks.encode(Bytes::from_static(b"block"))).unwrap();
            assert_eq!(sealed.len(), 5 + blocks.encoded_overhead());
        }
    }
}
