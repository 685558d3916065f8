/// Which instructions the lock uses. All give the same bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Implementation {
    /// AVX-512 (F, BW, VL, DQ): 16 blocks of key stream at once.
    Avx512,
    /// AVX2: 8 blocks at once.
    Avx2,
    /// Any machine: the streams of the `chacha20` and `aes` crates.
    Portable,
}

impl Implementation {
    /// The best one this machine has.
    #[must_use]
    pub fn best() -> Self {
        Self::available()[0]
    }

    /// Those that this machine has, best first; never empty.
    #[must_use]
    pub fn available() -> Vec<Self> {
        let mut available = Vec::new();
        #[cfg(target_arch = "x86_64")]
        {
            let avx512 = is_x86_feature_detected!("avx512f")
                && is_x86_feature_detected!("avx512bw")
                && is_x86_feature_detected!("avx512vl")
                && is_x86_feature_detected!("avx512dq");
            if avx512 {
                available.push(Self::Avx512);
            }
            if is_x86_feature_detected!("avx2") {
                available.push(Self::Avx2);
            }
        }
        available.push(Self::Portable);
        available
    }
}
