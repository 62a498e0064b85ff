use super::*;

#[test]
fn a_page_under_write_back_is_not_changed() {
    let pool = Pool::new(4);
    let mut cache = Cache::default();
    cache.write(&pool, 0, 0, &[1; PAGE_SIZE], None, 1);
    let run = cache.take_run(0, 9, RUN_MAX, 1).unwrap();
    cache.write(&pool, 0, 10, &[2; 5], None, 1);
    assert_eq!(run.pages[0].bytes(), &[1; PAGE_SIZE], "the store must see one version");
    drop(run.pages);
    assert!(cache.end_run(0, 1, true).is_empty(), "it was changed meanwhile and stays");
    assert_eq!((cache.dirty(), cache.held()), (1, 1));
    let run = cache.take_run(0, 9, RUN_MAX, 1).unwrap();
    assert_eq!(run.pages[0].bytes()[9..16], [1, 2, 2, 2, 2, 2, 1]);
}

#[test]
fn written_pages_leave_and_failed_ones_stay() {
    let pool = Pool::new(4);
    let mut cache = Cache::default();
    for index in [3, 4, 6] {
        cache.write(&pool, index, 0, b"x", None, 1);
    }
    let run = cache.take_run(0, 9, RUN_MAX, 1).unwrap();
    assert_eq!((run.first, run.pages.len()), (3, 2), "neighbours go together");
    drop(run);
    let run = cache.take_run(5, 9, RUN_MAX, 1).unwrap();
    assert_eq!((run.first, run.pages.len()), (6, 1));
    drop(run.pages);
    assert!(cache.take_run(0, 9, RUN_MAX, 1).is_none(), "nothing is dirty while all of it is being written");
    assert_eq!(cache.end_run(6, 1, false).len(), 0);
    assert_eq!(cache.dirty(), 1);
    assert_eq!(cache.end_run(3, 2, true).len(), 2);
    assert_eq!(cache.held(), 1);
}

#[test]
fn truncate_drops_what_is_beyond_and_zeroes_the_rest_of_the_last_page() {
    let pool = Pool::new(4);
    let mut cache = Cache::default();
    for index in 0..3 {
        cache.write(&pool, index, 0, &[7; PAGE_SIZE], None, 1);
    }
    let gone = cache.truncate(&pool, PAGE + 100);
    assert_eq!((gone.len(), cache.held(), cache.dirty()), (1, 2, 2));
    let pages: Vec<_> = cache.range(1, 1).map(|(_, page)| Arc::clone(page)).collect();
    assert_eq!(pages[0].bytes()[..100], [7; 100]);
    assert_eq!(pages[0].bytes()[100..], [0; PAGE_SIZE - 100]);
}

#[test]
fn a_new_page_is_zero_where_nothing_was_written() {
    let pool = Pool::new(4);
    let mut cache = Cache::default();
    cache.write(&pool, 0, 0, &[9; PAGE_SIZE], None, 1);
    pool.recycle(cache.clear());
    cache.write(&pool, 5, 100, b"abc", None, 1);
    let page = Arc::clone(cache.range(5, 5).next().unwrap().1);
    assert_eq!(page.bytes()[..100], [0; 100], "a reused buffer must not show through");
    assert_eq!(&page.bytes()[100..103], b"abc");
    assert!(page.bytes()[103..].iter().all(|&byte| byte == 0));
}

/// A file is overwritten from its beginning while its last page is being written.
#[test]
fn a_run_past_the_last_page_is_none() {
    let pool = Pool::new(4);
    let mut cache = Cache::default();
    for index in 0..2 {
        cache.write(&pool, index, 0, &[7; PAGE_SIZE], None, 1);
    }
    let run = cache.take_run(0, 1, RUN_MAX, 1).unwrap();
    assert_eq!((run.first, run.pages.len()), (0, 2));
    cache.write(&pool, 0, 0, &[8; PAGE_SIZE], None, 1);
    assert_eq!(cache.dirty(), 1);
    assert!(cache.take_run(2, 1, RUN_MAX, 1).is_none());
}

/// The content of the cache, as a plain map from a page's number to its first byte and whether it
/// is dirty.
type Model = std::collections::BTreeMap<u64, (u8, bool)>;

fn held_as(cache: &Cache, model: &Model) {
    let held: Vec<_> =
        cache.range(0, u64::MAX / PAGE).map(|(index, page)| (index, page.bytes()[0])).collect();
    let expected: Vec<_> = model.iter().map(|(index, (byte, _))| (*index, *byte)).collect();
    assert_eq!(held, expected);
    assert_eq!(cache.held(), model.len() as u64);
    assert_eq!(cache.dirty(), model.values().filter(|(_, dirty)| *dirty).count() as u64);
    assert!(cache.groups.values().all(|group| !group.is_empty()), "an entry that holds nothing");
}

/// Every length of run, of gap and of rest, across the borders of groups.
#[test]
fn runs_and_truncation_do_not_care_for_groups() {
    let pool = Pool::new(200);
    for (first, gap, size) in
        (0..40).flat_map(|first| [(first, 1, 20), (first, 17, 33), (first, 3, first + 1)])
    {
        let (mut cache, mut model) = (Cache::default(), Model::new());
        for index in (first..first + 20).chain(first + 20 + gap..first + 40 + gap) {
            let byte = u8::try_from(index % 251).unwrap();
            assert!(cache.write(&pool, index, 0, &[byte; PAGE_SIZE], None, 1));
            model.insert(index, (byte, true));
        }
        held_as(&cache, &model);
        let run = cache.take_run(first, u64::MAX / PAGE, RUN_MAX, 1).unwrap();
        assert_eq!((run.first, run.pages.len()), (first, 20));
        drop(run);
        model.values_mut().take(20).for_each(|(_, dirty)| *dirty = false);
        held_as(&cache, &model);
        assert_eq!(
            cache.range(first + 5, first + 24).count(),
            15 + usize::try_from(5_u64.saturating_sub(gap)).unwrap()
        );
        assert_eq!(cache.end_run(first, 20, true).len(), 20);
        model.retain(|_, (_, dirty)| *dirty);
        held_as(&cache, &model);
        let before = model.len();
        model.retain(|index, _| *index < size);
        assert_eq!(cache.truncate(&pool, size * PAGE).len(), before - model.len());
        held_as(&cache, &model);
        assert_eq!(cache.clear().len(), model.len());
        held_as(&cache, &Model::new());
    }
}
