//! The only real clock and the only real dice.

use posthaste_core::time::{Clock, Dice, Timestamp};
use ring::rand::{SecureRandom, SystemRandom};
use std::sync::Mutex;
use std::time::{SystemTime, UNIX_EPOCH};

/// The machine's wall clock.
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Timestamp {
        let epoch = Timestamp::from_micros(0);
        #[expect(clippy::disallowed_methods, reason = "the one place where the clock is read")]
        match SystemTime::now().duration_since(UNIX_EPOCH) {
            Ok(since) => epoch.after(since),
            Err(before) => epoch.before(before.duration()),
        }
    }
}

/// The operating system's generator, read in blocks: a message takes several rolls, and each
/// read is a system call.
pub struct SystemDice {
    random: SystemRandom,
    block: Mutex<Block>,
}

struct Block {
    bytes: [u8; Self::LEN],
    used: usize,
}

impl Block {
    const LEN: usize = 1_024;
}

impl SystemDice {
    pub fn new() -> Self {
        let block = Block { bytes: [0; Block::LEN], used: Block::LEN };
        Self { random: SystemRandom::new(), block: Mutex::new(block) }
    }
}

impl Dice for SystemDice {
    fn roll(&self) -> u64 {
        let mut roll = [0; 8];
        self.fill(&mut roll);
        u64::from_le_bytes(roll)
    }

    fn fill(&self, bytes: &mut [u8]) {
        // A panic between taking and using bytes leaves a block that is still good.
        let mut block = self.block.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        for byte in bytes {
            if block.used == Block::LEN {
                refill(&self.random, &mut block.bytes);
                block.used = 0;
            }
            let used = block.used;
            // Each byte is given out once and forgotten.
            *byte = std::mem::take(&mut block.bytes[used]);
            block.used = used + 1;
        }
    }
}

/// Without randomness there are no ids, no secrets and no jitter: waiting is all that is left.
/// In practice the operating system fails here only before it has gathered enough of it.
fn refill(random: &SystemRandom, bytes: &mut [u8]) {
    while random.fill(bytes).is_err() {
        std::thread::yield_now();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rolls_differ_over_the_edge_of_a_block() {
        let dice = SystemDice::new();
        let rolls: std::collections::BTreeSet<u64> = (0..1_000).map(|_| dice.roll()).collect();
        assert_eq!(rolls.len(), 1_000);
        let mut key = [0; 3_000];
        dice.fill(&mut key);
        assert!(key.chunks(100).all(|part| part.iter().any(|byte| *byte != 0)));
    }

    #[test]
    fn the_clock_is_of_this_century() {
        assert!(SystemClock.now() > Timestamp::from_secs(1_700_000_000));
    }
}
