//! Pages and filters.

use crate::common::{Server, id_of, ids_of};
use serde_json::json;
use std::collections::BTreeSet;
use std::time::Duration;

/// Walks a list forward by `iterator`, then back by `prevIterator`; returns both.
async fn walk(server: &Server, path: &str, limit: usize) -> (Vec<String>, Vec<String>) {
    let query = if path.contains('?') { '&' } else { '?' };
    let base = format!("{path}{query}limit={limit}");
    let mut forward = Vec::new();
    let mut page = server.get(&base).await.expect(200);
    loop {
        forward.extend(ids_of(&page));
        if page["done"] == true {
            break;
        }
        let next = page["iterator"].as_str().unwrap().to_owned();
        page = server.get(&format!("{base}&iterator={next}")).await.expect(200);
    }
    // From the last page back to the first; each page is in the list's own order.
    let mut back = ids_of(&page);
    loop {
        let before = page["prevIterator"].as_str().unwrap().to_owned();
        page = server.get(&format!("{base}&iterator={before}")).await.expect(200);
        let mut ids = ids_of(&page);
        let done = page["done"] == true;
        ids.append(&mut back);
        back = ids;
        if done {
            break;
        }
    }
    (forward, back)
}

#[tokio::test]
async fn a_page_of_large_messages_is_short_and_the_walk_still_whole() {
    let server = Server::start().await;
    let application = server.application("App").await;
    server.endpoint(&application).await;
    let path = format!("/api/v1/app/{application}/msg");
    let body = format!(r#"{{"eventType":"a","payload":{{"x":"{}"}}}}"#, "x".repeat(5_000_000));
    let mut messages = Vec::new();
    for _ in 0..5 {
        messages.push(id_of(&server.post(&path, &body).await.expect(202)));
    }
    messages.reverse();
    let page = server.get(&path).await.expect(200);
    assert_eq!((ids_of(&page), &page["done"]), (messages[..3].to_vec(), &json!(false)));
    assert_eq!(walk(&server, &path, 50).await, (messages.clone(), messages));
}

#[tokio::test]
async fn lists_are_walked_forward_and_back_without_gap_or_repetition() {
    let server = Server::start().await;
    let mut applications = Vec::new();
    for index in 0..7 {
        applications.push(server.application(&format!("App {index}")).await);
    }
    let application = applications[0].clone();
    let mut endpoints = Vec::new();
    let mut messages = Vec::new();
    for _ in 0..6 {
        endpoints.push(server.endpoint(&application).await);
    }
    for _ in 0..6 {
        messages.push(server.message(&application).await);
    }
    server.work(200, b"").await;
    let newest_first = |ids: &[String]| ids.iter().rev().cloned().collect::<Vec<_>>();
    let app = format!("/api/v1/app/{application}");
    let lists = [
        ("/api/v1/app".to_owned(), applications.clone()),
        ("/api/v1/app?order=descending".to_owned(), newest_first(&applications)),
        (format!("{app}/endpoint"), newest_first(&endpoints)),
        (format!("{app}/endpoint?order=ascending"), endpoints.clone()),
        (format!("{app}/msg"), newest_first(&messages)),
        (format!("{app}/endpoint/{}/msg", endpoints[0]), newest_first(&messages)),
        (format!("{app}/msg/{}/endpoint", messages[0]), endpoints.clone()),
    ];
    for (path, expected) in &lists {
        for limit in [1, 2, 3, 6, 7, 50] {
            let (forward, back) = walk(&server, path, limit).await;
            assert_eq!(&forward, expected, "{path} by {limit}");
            assert_eq!(&back, expected, "{path} back by {limit}");
        }
    }
    let attempts = format!("{app}/attempt/endpoint/{}", endpoints[0]);
    let (forward, back) = walk(&server, &attempts, 4).await;
    assert_eq!(forward, back);
    assert_eq!(forward.iter().collect::<BTreeSet<_>>().len(), 6);

    // Nobody who asks on until `done` would get past a page of nothing.
    let others = ["/api/v1/event-type", "/api/v1/dead-letter"].map(str::to_owned);
    let of_message = format!("{app}/attempt/msg/{}", messages[0]);
    for path in lists.iter().map(|(path, _)| path).chain([&attempts, &of_message]).chain(&others) {
        let and = if path.contains('?') { '&' } else { '?' };
        let refused = server.get(&format!("{path}{and}limit=0")).await.expect(422);
        assert_eq!(refused["detail"][0]["loc"], json!(["query", "limit"]), "{path}");
        assert_eq!(refused["detail"][0]["msg"], "must be 1 to 250", "{path}");
    }
    let none = server.get("/api/v1/event-type").await.expect(200);
    assert_eq!(none, json!({"data": [], "iterator": null, "done": true}));
}

#[tokio::test]
async fn messages_are_filtered_by_time_type_and_channel() {
    let server = Server::start().await;
    let application = server.application("App").await;
    let path = format!("/api/v1/app/{application}/msg");
    let mut messages = Vec::new();
    for (name, channels) in [("a", "null"), ("b", r#"["x"]"#), ("c", r#"["x","y"]"#)] {
        server.clock.advance(Duration::from_secs(60));
        let body = format!(r#"{{"eventType":"{name}","payload":{{}},"channels":{channels}}}"#);
        messages.push(server.post(&path, &body).await.expect(202));
    }
    let ids: Vec<_> = messages.iter().map(id_of).collect();
    let time = |index: usize| messages[index]["timestamp"].as_str().unwrap().to_owned();
    for (query, expected) in [
        ("event_types=a".to_owned(), vec![0]),
        ("event_types=a,c".to_owned(), vec![2, 0]),
        ("event_types[]=a&event_types[]=b".to_owned(), vec![1, 0]),
        ("channel=x".to_owned(), vec![2, 1]),
        ("channel=z".to_owned(), vec![]),
        (format!("before={}", time(1)), vec![0]),
        (format!("after={}", time(1)), vec![2, 1]),
        // With `after` alone: the page nearest to it.
        (format!("after={}&limit=1", time(1)), vec![1]),
        (format!("after={}&before={}", time(0), time(2)), vec![1, 0]),
    ] {
        let page = server.get(&format!("{path}?{query}")).await.expect(200);
        let expected: Vec<_> = expected.into_iter().map(|index: usize| &ids[index]).collect();
        assert_eq!(ids_of(&page).iter().collect::<Vec<_>>(), expected, "{query}");
    }
}
