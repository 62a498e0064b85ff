//! The operations of every subject.

/// Numbered sources that are signalled, and consumers that wait for them.
pub(crate) trait Subject: Sync + Sized {
    /// The state of one consumer.
    type Consumer;

    /// A subject with `sources` sources.
    fn new(sources: usize) -> Self;

    /// A consumer.
    fn consumer(&self) -> Self::Consumer;

    /// One more on source number `source`.
    fn signal(&self, source: usize);

    /// Waits until something is ready, takes the counts of up to `max` sources, and returns their
    /// sum.
    fn wait(&self, consumer: &mut Self::Consumer, max: usize) -> u64;

    /// Takes without waiting.
    fn poll(&self, consumer: &mut Self::Consumer, max: usize) -> u64;

    /// Modifies the interest in a source (to its present value), deletes it and adds it again;
    /// calls `did` after each of the three. Returns whether the subject can.
    fn control(&self, _source: usize, _did: impl FnMut()) -> bool {
        false
    }
}
