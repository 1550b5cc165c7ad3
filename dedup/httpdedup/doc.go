// Package httpdedup is net/http middleware for the Idempotency-Key header
// (draft-ietf-httpapi-idempotency-key-header): a request that is sent again gets the
// first answer, and the handler does not run twice.
//
//	guarded, err := httpdedup.New(guard, httpdedup.Config{}) // callers by Authorization
//	mux.Handle("POST /charge", authenticated(guarded(charge)))
//
// Put it inside authentication and outside of what has an effect: whoever gets
// through to it with a key of his own gets that key's answer.
//
// # What is the same request
//
// The header is a quoted string ("8e03978e…", as the draft says) or the bare key.
// Keys of different principals, methods and routes have nothing to do with each
// other. Within them, a key stands for one payload: method, path with query, the
// headers of Config.FingerprintHeaders and the body, byte for byte. A form whose
// multipart boundary is new with each attempt is another payload; Config.Fingerprint
// can say otherwise.
//
// # What the client gets
//
//	first request                     the handler's answer, once it is stored
//	duplicate, answered               the stored answer, Idempotent-Replayed: true
//	duplicate, in progress            the same after a wait; else 409 InProgress, Retry-After
//	key missing, where required       400 KeyMissing
//	key malformed                     400 KeyMalformed
//	key used with another payload     422 KeyReused
//	body over the limit               413 BodyTooLarge
//	body that cannot be read          400 BodyUnreadable
//	ensemble away, client suspended   503 Unavailable, Retry-After
//	outcome unknown                   409 OutcomeUnknown, Retry-After
//	answered, answer not stored       409 AnswerNotStored
//	resolved as failed                500 Failed, Idempotent-Replayed: true
//	key older than the retention      410 KeyExpired
//	record unreadable, set-up wrong   500 Unusable, 500 Misconfigured
//
// The problems are application/problem+json (RFC 9457), with the constants of this
// package as type, and say Cache-Control: no-store.
//
// A 503 says that nothing has run for this request. It does not speak of those before: an
// earlier one with the key may have been answered, or be running. As after an answer
// that was lost on its way, the client retries with the same key.
//
// An unknown outcome is a 409 as well, for the sake of clients that look at the status
// alone: to go on asking with the same key is right (the answer comes once somebody
// has called dedup.Guard.Resolve), and to begin anew with another key is what must not
// happen. A 5xx would say that it failed. For the same reason an answer that was not
// stored is a 409, without Retry-After: it will not come. It has the status that was
// sent the first time as the member original_status, where that is known. A key that
// is expired is a 410: no retry with it has a use, and its client has to look whether
// the work was done before it takes a new key.
//
// # The handler
//
// Its answer is kept back until the store has it: so WriteHeader and Write send
// nothing, Flush does nothing, informational responses (1xx) and trailers are left
// out, and Hijack is refused (http.ResponseController returns http.ErrNotSupported). A
// handler that streams works, and its client sees all of it at the end. The request
// body is read before, up to MaxBody, and is given to the handler as it was.
//
// What becomes of the answer is for Config.Verdict to say. By default an answer below
// 500 is kept, 4xx included, and is what every duplicate gets. An answer of 500 and
// above, and those by which a 4xx asks to be sent again (401, 408, 421, 425, 429), go
// to this client alone; the next request with the key runs the handler again. So a
// handler must not answer 5xx when it may have had its effect, unless its effect is
// idempotent: it panics, or the Verdict of its status is Unknown.
//
// A handler that panics (also with http.ErrAbortHandler) leaves an unknown outcome, and
// the panic goes on. An answer over MaxAnswer goes to its client and is kept without
// its body.
//
// The handler's context has the claim, ClaimFromContext: its token is for stores that
// refuse a smaller one, its Await is the gate before a step that must not be taken
// twice. The context ends when the claim is lost, and after Config.Timeout. It does not
// end when the client hangs up, nor with a deadline of the request's context: a
// handler that has begun goes on, and its answer is there for the retry. Before it has
// begun, a client that hangs up stops the wait.
package httpdedup
