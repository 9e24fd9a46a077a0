//! The line in which questions wait for their turn. Clients take turns, so that who asks much at once keeps nobody else
//! waiting for all of it, and where no more may wait, the client with the most questions makes way for one with fewer.
//!
//! A client is an address, and within it a connection: people behind one proxy share what there is among their connections.

use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;

/// So many wait at most, as each keeps a connection's place.
pub(super) const MOST_WAITING: usize = 32;

/// Who asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Client {
    address: IpAddr,
    connection: u64,
}

impl Client {
    /// A connection, by its number, from this address.
    pub(crate) fn new(address: IpAddr, connection: u64) -> Self {
        Self { address: network(address), connection }
    }

    /// Where it comes from; of a network of version 6 one for all that differ in the last 64 bits.
    pub(super) fn address(&self) -> IpAddr {
        self.address
    }
}

/// What counts as one address: who has one of a network of version 6 has all that differ in the last 64 bits.
pub(crate) fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() >> 64 << 64).into(),
        address @ IpAddr::V4(_) => address,
    }
}

/// All questions that wait and that are worked on.
#[derive(Debug)]
pub(super) struct Line {
    at_once: usize,
    questions: Mutex<Questions>,
}

#[derive(Debug, Default)]
struct Questions {
    next: u64,
    /// How many have had their turn.
    turns: u64,
    all: Vec<Question>,
}

#[derive(Debug)]
struct Question {
    number: u64,
    client: Client,
    /// The last turns of its address and of its connection, by number.
    last: (u64, u64),
    /// Tells it of its turn; none when it has had it.
    tell: Option<oneshot::Sender<()>>,
}

/// A question's place in the line, or its turn. Dropped, it is another's.
#[derive(Debug)]
pub(super) struct Turn {
    line: Arc<Line>,
    number: u64,
    told: oneshot::Receiver<()>,
}

impl Line {
    /// So many have their turn at once.
    pub(super) fn new(at_once: usize) -> Arc<Self> {
        Arc::new(Self { at_once, questions: Mutex::default() })
    }

    fn questions(&self) -> MutexGuard<'_, Questions> {
        self.questions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A place, where there is one or another makes way.
    pub(super) fn enter(self: &Arc<Self>, client: Client) -> Option<Turn> {
        let mut questions = self.questions();
        if questions.waiting().count() >= MOST_WAITING {
            let number = questions.makes_way(client)?;
            questions.all.retain(|question| question.number != number);
        }
        let (tell, told) = oneshot::channel();
        let (number, last) = (questions.next, questions.last_turns(client));
        questions.next += 1;
        questions.all.push(Question { number, client, last, tell: Some(tell) });
        questions.give_turns(self.at_once);
        Some(Turn { line: Arc::clone(self), number, told })
    }
}

impl Questions {
    fn waiting(&self) -> impl Iterator<Item = &Question> {
        self.all.iter().filter(|question| question.tell.is_some())
    }

    /// How many questions the address of a client has, and how many its connection.
    fn held(&self, client: Client) -> (usize, usize) {
        let count = |is_its: &dyn Fn(&Client) -> bool| self.all.iter().filter(|one| is_its(&one.client)).count();
        (count(&|other| other.address == client.address), count(&|other| *other == client))
    }

    /// The newest question that waits of the client that has most, where this one has fewer even with one more.
    fn makes_way(&self, client: Client) -> Option<u64> {
        let (of_address, of_connection) = self.held(client);
        let all = self.waiting().map(|question| (self.held(question.client), question));
        let more = all.filter(|((address, connection), question)| {
            if question.client.address == client.address {
                *connection > of_connection + 1
            } else {
                *address > of_address + 1
            }
        });
        more.max_by_key(|(held, question)| (*held, question.number)).map(|(_, question)| question.number)
    }

    /// The last turns of an address and of a connection. One that has no question here comes right before who had the last
    /// turn of all, and not before those who wait for longer.
    fn last_turns(&self, client: Client) -> (u64, u64) {
        let new = self.turns.saturating_sub(1);
        let of_address = self.all.iter().filter(|question| question.client.address == client.address);
        let of_connection = self.all.iter().filter(|question| question.client == client);
        let address = of_address.map(|question| question.last.0).max();
        (address.unwrap_or(new), of_connection.map(|question| question.last.1).max().unwrap_or(new))
    }

    /// Gives the turns that are free to those whose address, and within it whose connection, had its last one longest ago.
    fn give_turns(&mut self, at_once: usize) {
        while self.all.len() - self.waiting().count() < at_once {
            let waiting = self.all.iter_mut().filter(|question| question.tell.is_some());
            let Some(next) = waiting.min_by_key(|question| (question.last, question.number)) else { break };
            // Where nobody is told, it is leaving and gives its turn back.
            let _ = next.tell.take().map(|tell| tell.send(()));
            let client = next.client;
            self.turns += 1;
            for question in self.all.iter_mut().filter(|question| question.client.address == client.address) {
                question.last.0 = self.turns;
                if question.client == client {
                    question.last.1 = self.turns;
                }
            }
        }
    }
}

impl Turn {
    /// Waits for it; false where it made way for another.
    pub(super) async fn comes(&mut self) -> bool {
        (&mut self.told).await.is_ok()
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let mut questions = self.line.questions();
        questions.all.retain(|question| question.number != self.number);
        questions.give_turns(self.line.at_once);
    }
}

#[cfg(test)]
impl Line {
    /// How many turns are free.
    pub(super) fn free(&self) -> usize {
        let questions = self.questions();
        self.at_once - (questions.all.len() - questions.waiting().count())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn client(address: &str, connection: u64) -> Client {
        Client::new(address.parse().unwrap(), connection)
    }

    /// The questions that have had their turn, of those that have not left.
    fn told(turns: &mut [Option<Turn>]) -> Vec<usize> {
        let is_told = |turn: &mut Option<Turn>| turn.as_mut().is_some_and(|turn| turn.told.try_recv().is_ok());
        turns.iter_mut().enumerate().filter_map(|(index, turn)| is_told(turn).then_some(index)).collect()
    }

    #[test]
    fn addresses_take_turns_and_connections_within_them() {
        let line = Line::new(1);
        let clients =
            [("10.0.0.1", 1), ("10.0.0.1", 1), ("10.0.0.1", 1), ("10.0.0.1", 2), ("10.0.0.1", 2), ("10.0.0.2", 3)];
        let enter = |(address, connection)| line.enter(client(address, connection));
        let mut turns: Vec<_> = clients.into_iter().map(enter).collect();
        let mut order = Vec::new();
        for _ in 0..clients.len() {
            let next = told(&mut turns);
            next.iter().for_each(|index| turns[*index] = None);
            order.extend(next);
            if order.len() == 2 {
                // One that comes again and again goes before nobody who waits.
                turns[5] = enter(clients[5]);
            }
        }
        assert_eq!(order, [0, 5, 3, 5, 1, 4]);
        assert_eq!(told(&mut turns), [2]);
    }

    #[test]
    fn who_has_most_makes_way_for_who_has_fewer() {
        let line = Line::new(1);
        let (much, little) = (client("10.0.0.1", 1), client("10.0.0.2", 2));
        let mut held: Vec<_> = (0..=MOST_WAITING).map(|_| line.enter(much).unwrap()).collect();
        assert!(line.enter(much).is_none());
        // The newest goes, as long as there are more of them.
        let others: Vec<_> = std::iter::from_fn(|| line.enter(little)).collect();
        assert_eq!(others.len(), MOST_WAITING / 2);
        let made_way = |turn: &mut Turn| matches!(turn.told.try_recv(), Err(oneshot::error::TryRecvError::Closed));
        let gone: Vec<usize> =
            held.iter_mut().enumerate().filter_map(|(at, turn)| made_way(turn).then_some(at)).collect();
        assert_eq!(gone, (MOST_WAITING / 2 + 1..=MOST_WAITING).collect::<Vec<_>>());
        // Another connection of either takes its part of what that address has.
        assert!(line.enter(client("10.0.0.1", 3)).is_some() && line.enter(client("10.0.0.2", 4)).is_some());
    }

    #[test]
    fn a_network_is_one_address() {
        assert_eq!(client("2001:db8::1", 1), client("2001:db8::ffff:2", 1));
        assert_ne!(client("2001:db8::1", 1), client("2001:db8:0:1::1", 1));
        assert_eq!(client("::ffff:10.0.0.1", 1), client("10.0.0.1", 1));
    }
}
