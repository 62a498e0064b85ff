use super::*;

#[test]
fn a_page_under_write_back_is_not_changed() {
    let pool = Pool::new(4);
    let mut cache = Cache::default();
    cache.write(&pool, 0, 0, &[1; PAGE_SIZE], None);
    let run = cache.take_run(0, 9).unwrap();
    cache.write(&pool, 0, 10, &[2; 5], None);
    assert_eq!(run.pages[0].bytes(), &[1; PAGE_SIZE], "the store must see one version");
    drop(run.pages);
    assert!(cache.end_run(0, 1, true).is_empty(), "it was changed meanwhile and stays");
    assert_eq!((cache.dirty(), cache.held()), (1, 1));
    let run = cache.take_run(0, 9).unwrap();
    assert_eq!(run.pages[0].bytes()[9..16], [1, 2, 2, 2, 2, 2, 1]);
}

#[test]
fn written_pages_leave_and_failed_ones_stay() {
    let pool = Pool::new(4);
    let mut cache = Cache::default();
    for index in [3, 4, 6] {
        cache.write(&pool, index, 0, b"x", None);
    }
    let run = cache.take_run(0, 9).unwrap();
    assert_eq!((run.first, run.pages.len()), (3, 2), "neighbours go together");
    drop(run);
    let run = cache.take_run(5, 9).unwrap();
    assert_eq!((run.first, run.pages.len()), (6, 1));
    drop(run.pages);
    assert!(cache.take_run(0, 9).is_none(), "nothing is dirty while all of it is being written");
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
        cache.write(&pool, index, 0, &[7; PAGE_SIZE], None);
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
    cache.write(&pool, 0, 0, &[9; PAGE_SIZE], None);
    pool.recycle(cache.clear());
    cache.write(&pool, 5, 100, b"abc", None);
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
        cache.write(&pool, index, 0, &[7; PAGE_SIZE], None);
    }
    let run = cache.take_run(0, 1).unwrap();
    assert_eq!((run.first, run.pages.len()), (0, 2));
    cache.write(&pool, 0, 0, &[8; PAGE_SIZE], None);
    assert_eq!(cache.dirty(), 1);
    assert!(cache.take_run(2, 1).is_none());
}
