//! `Debug` of the messages that carry a capability or what a person wrote: lengths only.

use std::fmt;

use crate::v1::{
    ChatMessage, GenerateRequest, GenerateResponse, GetBlobRequest, IssueUnlockResponse,
    ProveRangeRequest, StatBlobRequest, generate_request,
};

impl fmt::Debug for GetBlobRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GetBlobRequest")
            .field("digest", &self.digest)
            .field("offset", &self.offset)
            .field("length", &self.length)
            .field("capability", &Hidden(self.capability.len()))
            .finish()
    }
}

impl fmt::Debug for ProveRangeRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ProveRangeRequest")
            .field("digest", &self.digest)
            .field("offset", &self.offset)
            .field("length", &self.length)
            .field("capability", &Hidden(self.capability.len()))
            .finish()
    }
}

impl fmt::Debug for StatBlobRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StatBlobRequest")
            .field("digest", &self.digest)
            .field("capability", &Hidden(self.capability.len()))
            .finish()
    }
}

impl fmt::Debug for IssueUnlockResponse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IssueUnlockResponse")
            .field("capability", &Hidden(self.capability.len()))
            .field("capability_id", &self.capability_id)
            .field("expires_at", &self.expires_at)
            .field("units", &self.units)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for ChatMessage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ChatMessage")
            .field("role", &self.role)
            .field("content", &Hidden(self.content.len()))
            .finish()
    }
}

impl fmt::Debug for GenerateRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GenerateRequest")
            .field("model", &self.model)
            .field("input", &self.input)
            .field("max_tokens", &self.max_tokens)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for generate_request::Input {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Prompt(text) => f.debug_tuple("Prompt").field(&Hidden(text.len())).finish(),
            Self::Chat(chat) => f.debug_tuple("Chat").field(&chat.messages.len()).finish(),
            Self::Tokens(tokens) => f.debug_tuple("Tokens").field(&tokens.ids.len()).finish(),
        }
    }
}

impl fmt::Debug for GenerateResponse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GenerateResponse")
            .field("text", &Hidden(self.text.len()))
            .field("finish", &self.finish)
            .field("session_id", &self.session_id)
            .finish_non_exhaustive()
    }
}

struct Hidden(usize);

impl fmt::Debug for Hidden {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "[{} bytes]", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::v1::{ChatMessages, ScrubRequest};

    const MARKER: &str = "marker-secret";

    #[test]
    fn printing_a_message_shows_no_capability_and_no_prompt() {
        let marker = || MARKER.to_owned();
        let chat = ChatMessage {
            role: "user".to_owned(),
            content: marker(),
        };
        let printed = [
            format!(
                "{:?}",
                GetBlobRequest {
                    capability: marker(),
                    ..Default::default()
                }
            ),
            format!(
                "{:?}",
                ProveRangeRequest {
                    capability: marker(),
                    ..Default::default()
                }
            ),
            format!(
                "{:?}",
                StatBlobRequest {
                    capability: marker(),
                    ..Default::default()
                }
            ),
            format!(
                "{:?}",
                IssueUnlockResponse {
                    capability: marker(),
                    ..Default::default()
                }
            ),
            format!(
                "{:?}",
                GenerateRequest {
                    input: Some(generate_request::Input::Prompt(marker())),
                    ..Default::default()
                }
            ),
            format!(
                "{:?}",
                generate_request::Input::Chat(ChatMessages {
                    messages: vec![chat.clone()]
                })
            ),
            format!("{chat:?}"),
            format!(
                "{:?}",
                GenerateResponse {
                    text: marker(),
                    ..Default::default()
                }
            ),
        ];
        for text in printed {
            assert!(!text.contains(MARKER), "{text}");
        }
        let plain = ScrubRequest { digest: marker() };
        assert!(format!("{plain:?}").contains(MARKER));
    }
}
