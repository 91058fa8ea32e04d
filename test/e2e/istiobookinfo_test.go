package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// subsets are the versions of reviews. What a route of them says is added: weights by version.
const subsets = `
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: reviews}
spec:
  host: reviews
  subsets: [{name: v1, labels: {version: v1}}, {name: v2, labels: {version: v2}}, {name: v3, labels: {version: v3}}]
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: reviews}
spec:
  hosts: [reviews]
  http: [{route: %s}]
`

const (
	firstAlone = "[{destination: {host: reviews, subset: v1}}]"
	lastTwo    = "[{destination: {host: reviews, subset: v2}, weight: 50}, {destination: {host: reviews, subset: v3}, weight: 50}]"
)

// denied has details refuse the product page.
const denied = `
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: details}
spec:
  selector: {matchLabels: {app: details}}
  action: DENY
  rules: [{from: [{source: {principals: ["cluster.local/ns/%s/sa/productpage"]}}]}]
`

// Istio's example application, whole: who asks whom is known at both ends; the mesh refuses whom it is told to refuse, and sends requests where
// it is told to send them.
func (o outside) bookinfo(t *testing.T) {
	m := o.mesh(t)
	pods := []*corev1.Pod{
		m.member(t, "ratings", "v1"), m.member(t, "details", "v1"), m.member(t, "reviews", "v1"),
		m.member(t, "reviews", "v2", meshURL("ratings")), m.member(t, "reviews", "v3", meshURL("ratings")),
		m.member(t, "productpage", "v1", meshURL("details"), meshURL("reviews")), m.member(t, "shopper", "v1", meshURL("productpage")),
	}
	for _, pod := range pods {
		m.create(t, pod)
	}
	m.wantIdentities(t, pods)
	productpage, shopper := pods[5], pods[6]
	whole := func(a answer) error { return m.isPage(a, "shopper") }
	m.asks(t, identityWithin, shopper, meshURL("productpage"), whole)
	if err := fromOutside(t.Context(), productpage); err != nil {
		t.Errorf("a client without a proxy, before only mTLS is taken: %v", err)
	}

	m.apply(t, strict)
	eventually(t, "the refusal of a client without a certificate", func(ctx context.Context) error { return refused(fromOutside(ctx, productpage)) })
	m.asks(t, identityWithin, shopper, meshURL("productpage"), whole)

	m.apply(t, fmt.Sprintf(subsets, firstAlone))
	m.awaitReviews(t, productpage, "reviews-v1")
	m.apply(t, fmt.Sprintf(subsets, lastTwo))
	m.awaitReviews(t, productpage, "reviews-v2", "reviews-v3")
	m.asks(t, identityWithin, shopper, meshURL("productpage"), func(a answer) error {
		if len(a.Asked) != 2 || len(a.Asked[1].Asked) != 1 {
			return fmt.Errorf("the page is %+v, want reviews with ratings", a)
		}
		return errors.Join(m.isPage(a, "shopper"), m.calledBy(a.Asked[1].Asked[0], "ratings", "reviews"))
	})

	m.apply(t, fmt.Sprintf(denied, m.name))
	eventually(t, "the refusal by details", func(ctx context.Context) error {
		_, err := m.testapp(ctx, productpage, "get", meshURL("details"))
		return refused(err, "403 Forbidden")
	})
	m.asks(t, identityWithin, productpage, meshURL("ratings"), func(a answer) error { return m.calledBy(a, "ratings", "productpage") })
	m.mustKubectl(t, "delete", "authorizationpolicy", "details", "-n", m.name)
	m.asks(t, patience, shopper, meshURL("productpage"), whole)
}

// isPage wants a product page of details and reviews, all asked by mTLS.
func (s *space) isPage(a answer, caller string) error {
	if len(a.Asked) != 2 {
		return fmt.Errorf("the page is %+v", a)
	}
	return errors.Join(s.calledBy(a, "productpage", caller), s.calledBy(a.Asked[0], "details", "productpage"), s.calledBy(a.Asked[1], "reviews", "productpage"))
}

// fromOutside has this program, which has no proxy, ask a pod.
func fromOutside(ctx context.Context, pod *corev1.Pod) error {
	var a answer
	return request(ctx, at(pod, families()[0], meshPort), "/", &a)
}

// refused wants an error with some words.
func refused(err error, words ...string) error {
	if err == nil {
		return errors.New("it is answered")
	}
	for _, word := range words {
		if !strings.Contains(err.Error(), word) {
			return fmt.Errorf("it is refused otherwise than with %q: %w", word, err)
		}
	}
	return nil
}

// awaitReviews waits until a pod's questions to reviews are answered by some pods, and no others.
func (s *space) awaitReviews(t *testing.T, from *corev1.Pod, want ...string) {
	t.Helper()
	eventually(t, fmt.Sprint("answers of ", want), func(ctx context.Context) error {
		out, err := s.testapp(ctx, from, "dial", "-n=30", "-every=0", "-report=0", meshURL("reviews"))
		if err != nil {
			return err
		}
		var counted struct{ Answers map[string]int }
		if err := json.Unmarshal([]byte(out), &counted); err != nil {
			return err
		}
		for name := range counted.Answers {
			if !slices.Contains(want, name) {
				return fmt.Errorf("the answers are of %v", counted.Answers)
			}
		}
		if len(counted.Answers) != len(want) {
			return fmt.Errorf("the answers are of %v", counted.Answers)
		}
		return nil
	})
}
