//! How an answer travels that is longer than a message: in pages, which are fetched one by one.
//!
//! ```text
//! question: | ticket u64 | offset u64 | request, if the ticket is 0                   |
//! answer:   | ticket u64 | total u64  | bytes of the answer from the offset on        |
//! ```
//!
//! What is left of an answer is kept under its ticket, for the user who asked, until its last page
//! has been fetched. So all pages are of one moment. Of more than [`MOST_KEPT`] the oldest goes, of
//! the user who has the most: no user can drive out the answers of others by asking for a lot.

use std::collections::VecDeque;

use nilfs_fuse::{Caller, LONGEST};

/// Bytes in front of the content of a message.
const HEAD: usize = 2 * size_of::<u64>();

/// Bytes of an answer in one message.
const PAGE: usize = LONGEST - HEAD;

/// Answers that are kept until they have been fetched.
const MOST_KEPT: usize = 16;

/// Both kinds of messages: two numbers, and what follows them.
pub struct Message<'a> {
    pub ticket: u64,
    /// Where the page begins, in a question; how long the whole is, in an answer.
    pub number: u64,
    pub content: &'a [u8],
}

impl<'a> Message<'a> {
    /// From the bytes that travel.
    pub fn parse(bytes: &'a [u8]) -> Option<Self> {
        let (ticket, rest) = bytes.split_first_chunk()?;
        let (number, content) = rest.split_first_chunk()?;
        let (ticket, number) = (u64::from_ne_bytes(*ticket), u64::from_ne_bytes(*number));
        Some(Self { ticket, number, content })
    }

    /// The bytes that travel.
    pub fn to_bytes(&self) -> Vec<u8> {
        let (ticket, number) = (self.ticket.to_ne_bytes(), self.number.to_ne_bytes());
        [ticket.as_slice(), &number, self.content].concat()
    }
}

/// Answers of which pages are still to be fetched.
#[derive(Debug, Default)]
pub struct Pages {
    kept: VecDeque<Kept>,
    last_ticket: u64,
}

#[derive(Debug)]
struct Kept {
    ticket: u64,
    uid: u32,
    answer: Vec<u8>,
}

impl Pages {
    /// The first page of an answer.
    pub fn first(&mut self, caller: Caller, answer: Vec<u8>) -> Vec<u8> {
        self.last_ticket += 1;
        let ticket = self.last_ticket;
        let page = page(ticket, &answer, 0);
        if answer.len() > PAGE {
            self.kept.push_front(Kept { ticket, uid: caller.uid, answer });
            if self.kept.len() > MOST_KEPT {
                self.forget_one();
            }
        }
        page
    }

    fn forget_one(&mut self) {
        let kept_for = |uid| self.kept.iter().filter(|kept| kept.uid == uid).count();
        // The last of equals, which is the oldest.
        let nth = (0..self.kept.len()).max_by_key(|nth| kept_for(self.kept[*nth].uid));
        nth.map(|nth| self.kept.remove(nth));
    }

    /// A later page; a message without content if it is not kept for this caller.
    pub fn next(&mut self, caller: Caller, ticket: u64, offset: u64) -> Vec<u8> {
        let kept = self.kept.iter().position(|k| k.ticket == ticket && k.uid == caller.uid);
        let Some(nth) = kept else {
            return Message { ticket, number: 0, content: &[] }.to_bytes();
        };
        let answer = &self.kept[nth].answer;
        let offset = usize::try_from(offset).unwrap_or(usize::MAX);
        let page = page(ticket, answer, offset);
        if offset.saturating_add(PAGE) >= answer.len() {
            self.kept.remove(nth);
        }
        page
    }
}

fn page(ticket: u64, answer: &[u8], offset: usize) -> Vec<u8> {
    let rest = answer.get(offset..).unwrap_or_default();
    let content = &rest[..rest.len().min(PAGE)];
    Message { ticket, number: answer.len() as u64, content }.to_bytes()
}

/// Puts an answer together. `exchange` carries a message there and one back.
///
/// # Errors
/// Those of `exchange`, and [`std::io::ErrorKind::InvalidData`] if pages are missing.
pub fn collect(
    request: &[u8],
    mut exchange: impl FnMut(&[u8]) -> std::io::Result<Vec<u8>>,
) -> std::io::Result<Vec<u8>> {
    let mut answer = Vec::new();
    let mut question = Message { ticket: 0, number: 0, content: request };
    loop {
        let bytes = exchange(&question.to_bytes())?;
        let page = Message::parse(&bytes).ok_or(std::io::ErrorKind::InvalidData)?;
        answer.extend(page.content);
        if answer.len() as u64 == page.number {
            return Ok(answer);
        }
        if page.content.is_empty() {
            return Err(std::io::ErrorKind::InvalidData.into());
        }
        question = Message { ticket: page.ticket, number: answer.len() as u64, content: &[] };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROOT: Caller = Caller { uid: 0, gid: 0 };
    const SOMEBODY: Caller = Caller { uid: 1000, gid: 1000 };

    fn long(byte: u8) -> Vec<u8> {
        vec![byte; 3 * PAGE + 1]
    }

    fn exchange(pages: &mut Pages, caller: Caller, question: &[u8], answer: &[u8]) -> Vec<u8> {
        let message = Message::parse(question).unwrap();
        let bytes = match message.ticket {
            0 => pages.first(caller, answer.to_vec()),
            ticket => pages.next(caller, ticket, message.number),
        };
        assert!(bytes.len() <= LONGEST);
        bytes
    }

    #[test]
    fn answers_of_any_length_arrive_whole() {
        for length in [0, 1, PAGE - 1, PAGE, PAGE + 1, 3 * PAGE, 3 * PAGE + 1] {
            let answer: Vec<u8> = (0..length).map(|nth| nth as u8).collect();
            let mut pages = Pages::default();
            let collected =
                collect(b"", |question| Ok(exchange(&mut pages, ROOT, question, &answer)));
            assert!(collected.unwrap() == answer, "{length}");
            assert!(pages.kept.is_empty(), "{length}");
        }
    }

    #[test]
    fn pages_of_two_answers_do_not_mix() {
        let mut pages = Pages::default();
        let mut other = None;
        let collected = collect(b"", |question| {
            let answer = exchange(&mut pages, ROOT, question, &long(1));
            other.get_or_insert_with(|| exchange(&mut pages, ROOT, question, &long(2)));
            Ok(answer)
        });
        assert!(collected.unwrap() == long(1));
    }

    #[test]
    fn nobody_else_gets_the_rest_of_an_answer() {
        let mut pages = Pages::default();
        let first = pages.first(ROOT, long(1));
        let ticket = Message::parse(&first).unwrap().ticket;
        let stolen = pages.next(SOMEBODY, ticket, PAGE as u64);
        assert!(Message::parse(&stolen).unwrap().content.is_empty());
    }

    #[test]
    fn answers_that_nobody_fetches_do_not_pile_up() {
        let mut pages = Pages::default();
        for _ in 0..10 * MOST_KEPT {
            pages.first(SOMEBODY, long(1));
        }
        assert_eq!(pages.kept.len(), MOST_KEPT);
    }

    #[test]
    fn a_user_who_asks_for_a_lot_takes_nothing_from_another() {
        let mut pages = Pages::default();
        let collected = collect(b"", |question| {
            let answer = exchange(&mut pages, ROOT, question, &long(1));
            for _ in 0..10 * MOST_KEPT {
                pages.first(SOMEBODY, long(2));
            }
            Ok(answer)
        });
        assert!(collected.unwrap() == long(1));
    }

    #[test]
    fn a_page_that_is_gone_is_an_error_and_not_a_wait_without_end() {
        let mut pages = Pages::default();
        let collected = collect(b"", |question| {
            let answer = exchange(&mut pages, ROOT, question, &long(1));
            pages.kept.clear();
            Ok(answer)
        });
        assert_eq!(collected.unwrap_err().kind(), std::io::ErrorKind::InvalidData);
    }
}
