//! What every subject can do.

/// Numbered sources that are signalled, and consumers that are told.
pub(crate) trait Subject: Sync + Sized {
    /// What one consumer keeps for itself.
    type Consumer;

    /// One with `sources` sources.
    fn new(sources: usize) -> Self;

    /// A consumer.
    fn consumer(&self) -> Self::Consumer;

    /// One more on source number `source`.
    fn signal(&self, source: usize);

    /// Waits until something is ready, takes what up to `max` sources have, and gives the sum.
    fn wait(&self, consumer: &mut Self::Consumer, max: usize) -> u64;

    /// The same without waiting.
    fn poll(&self, consumer: &mut Self::Consumer, max: usize) -> u64;

    /// Modifies what is asked of a source (to what it was), deletes it and adds it again; calls
    /// `did` after each of the three. Returns whether the subject can.
    fn control(&self, _source: usize, _did: impl FnMut()) -> bool {
        false
    }
}
