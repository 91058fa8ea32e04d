// Package apiauth asks the API server whether the owner of a bearer token may do something.
package apiauth

import (
	"cmp"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/client-go/util/flowcontrol"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Errors that callers tell apart. Any other error means that the API server gave no answer.
var (
	ErrUnauthenticated = errors.New("the token is missing, expired or of another cluster")
	ErrForbidden       = errors.New("the token's owner has no right to this")
	ErrBusy            = errors.New("too many requests with unknown tokens: try again in a few seconds")
)

const (
	// reviewTimeout bounds one decision.
	reviewTimeout = 5 * time.Second
	// reviewsPerSecond and reviewsAtOnce bound the decisions that are asked for, unless Options do.
	reviewsPerSecond, reviewsAtOnce = 5, 10
	// maxToken is the longest token that is passed on. Those of ServiceAccounts have about 1 KB.
	maxToken = 16 << 10
	// deniedTime is how long a refusal is remembered.
	deniedTime = 10 * time.Second
)

// Attributes are what somebody wants to do: a verb with a resource, or a verb with a path that is no resource.
type Attributes struct {
	Verb                                          string
	Group, Resource, Subresource, Namespace, Name string
	Path                                          string
}

// Reviews makes a TokenReview or a SubjectAccessReview at the API server, which fills in its status. NewClient returns one.
type Reviews interface {
	Create(ctx context.Context, review client.Object, opts ...client.CreateOption) error
}

// Authorizer decides by a TokenReview and a SubjectAccessReview:
//
//   - a remembered decision is used again: a permission for the time given to New, a refusal for deniedTime;
//   - otherwise the API server is asked who the token belongs to, and then whether that user may do it;
//   - no more decisions are asked for than Options.PerSecond, so a flood of tokens loads neither the agent nor the API server; what was
//     allowed before has as many of its own, so the flood does not keep out those who are known;
//   - a request that gets no answer is not remembered.
//
// Tokens are kept as hashes only. The memory has a bounded size, and refusals never displace what is allowed.
type Authorizer struct {
	reviews         Reviews
	audience        string
	limit, renewals flowcontrol.PassiveRateLimiter
	allowed, denied *memory
}

// Options are what the users of an Authorizer want of it.
type Options struct {
	// AllowedTime is how long what was allowed is remembered: a right that is taken away still works for so long.
	AllowedTime time.Duration
	// PerSecond and AtOnce bound the decisions that are asked for; 0 means 5 and 10. Each takes two requests to the API server.
	PerSecond float32
	AtOnce    int
	// Audience is another audience of accepted tokens, beside the API server's; "" means none.
	Audience string
}

// New returns an Authorizer.
func New(reviews Reviews, o Options) *Authorizer {
	perSecond, atOnce := cmp.Or(o.PerSecond, reviewsPerSecond), cmp.Or(o.AtOnce, reviewsAtOnce)
	return &Authorizer{
		reviews: reviews, audience: o.Audience,
		limit:    flowcontrol.NewTokenBucketPassiveRateLimiter(perSecond, atOnce),
		renewals: flowcontrol.NewTokenBucketPassiveRateLimiter(perSecond, atOnce),
		allowed:  newMemory(o.AllowedTime), denied: newMemory(deniedTime),
	}
}

// Authorize returns nil if the owner of the token may do it.
func (a *Authorizer) Authorize(ctx context.Context, token string, to Attributes) error {
	if token == "" || len(token) > maxToken {
		return ErrUnauthenticated
	}
	key := decisionOn(token, to)
	now := time.Now()
	_, ok, known := a.allowed.get(key, now)
	if ok {
		return nil
	}
	if refusal, ok, _ := a.denied.get(key, now); ok {
		return refusal.err
	}
	limit := a.limit
	if known {
		limit = a.renewals
	}
	if !limit.TryAccept() {
		return ErrBusy
	}
	ctx, cancel := context.WithTimeout(ctx, reviewTimeout)
	defer cancel()
	err := a.review(ctx, token, to)
	switch {
	case err == nil:
		a.allowed.put(key, nil, now)
	case errors.Is(err, ErrUnauthenticated), errors.Is(err, ErrForbidden):
		a.allowed.drop(key)
		a.denied.put(key, err, now)
	}
	return err
}

func (a *Authorizer) review(ctx context.Context, token string, to Attributes) error {
	who := &authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: token, Audiences: a.audiences(token)}}
	want := who.Spec.Audiences
	if err := a.reviews.Create(ctx, who); err != nil {
		return fmt.Errorf("ask the API server who a token belongs to: %w", err)
	}
	if !who.Status.Authenticated || len(want) > 0 && !slices.Contains(who.Status.Audiences, want[0]) { // not all authenticators know audiences
		return ErrUnauthenticated
	}
	may := &authorizationv1.SubjectAccessReview{Spec: to.spec(who.Status.User)}
	if err := a.reviews.Create(ctx, may); err != nil {
		return fmt.Errorf("ask the API server what %q may do: %w", who.Status.User.Username, err)
	}
	if !may.Status.Allowed || may.Status.Denied {
		return ErrForbidden
	}
	return nil
}

// audiences returns the audience to review a token for: Options.Audience if the token names it, else none, which means the API server's. What
// an unreviewed token says decides only what is asked about it.
func (a *Authorizer) audiences(token string) []string {
	parts := strings.Split(token, ".")
	if a.audience == "" || len(parts) != 3 {
		return nil
	}
	body, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err != nil {
		return nil
	}
	var claims struct {
		Audience []string `json:"aud"`
	}
	if json.Unmarshal(body, &claims) != nil || !slices.Contains(claims.Audience, a.audience) {
		return nil
	}
	return []string{a.audience}
}

// spec asks whether a user may do it.
func (to Attributes) spec(user authenticationv1.UserInfo) authorizationv1.SubjectAccessReviewSpec {
	out := authorizationv1.SubjectAccessReviewSpec{User: user.Username, UID: user.UID, Groups: user.Groups}
	for key, values := range user.Extra {
		if out.Extra == nil {
			out.Extra = map[string]authorizationv1.ExtraValue{}
		}
		out.Extra[key] = authorizationv1.ExtraValue(values)
	}
	if to.Path != "" {
		out.NonResourceAttributes = &authorizationv1.NonResourceAttributes{Path: to.Path, Verb: to.Verb}
		return out
	}
	out.ResourceAttributes = &authorizationv1.ResourceAttributes{
		Verb: to.Verb, Group: to.Group, Resource: to.Resource, Subresource: to.Subresource, Namespace: to.Namespace, Name: to.Name,
	}
	return out
}
