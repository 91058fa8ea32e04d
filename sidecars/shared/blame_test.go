package shared

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"istio-pod-network-controller/api/v1alpha1"
)

// The proxy refuses what it has once a pod leaves: who joins is not to blame, and it is tried again soon.
func TestAccept_servedPodsRefused_blamesProfile(t *testing.T) {
	t.Parallel()
	for _, joins := range []bool{false, true} {
		h, pods := newByHand(t, "a", "b")
		h.change(func() { h.refuses = "ns-a" })
		h.edit(pods[1], func(p *fakePod) { p.chosen = "none" })
		if joins {
			h.join("c")
		}
		next, err := h.round(t.Context())
		if err != nil || next > errorPause || next < errorPause/2 || !strings.Contains(h.g.told, "refuses what it serves already") || h.g.bad.hash != "" {
			t.Errorf("joins %v: error %v, next round in %s, told %q, noted %+v", joins, err, next, h.g.told, h.g.bad)
		}
		h.wantServed("a", "b")
		if !joins {
			continue
		}
		if s := h.status(h.pods["uid-c"].sandbox); s.State != v1alpha1.Failed || !strings.Contains(s.Message, "refuses what it serves already") || strings.Contains(s.Message, "ns-a") {
			t.Errorf("said to who joins: %+v", s)
		}
		h.change(func() { h.refuses = "" })
		h.rounds(1)
		h.wantServed("a", "c")
	}
}

// A new version goes on without a pod that is refused with it, unless half of them are: then the version is to blame, and no owner of a pod
// reads the words about another one.
func TestAccept_newVersionRefusesPods_keepsOthers(t *testing.T) {
	t.Parallel()
	many := strings.Fields("a b c d e f g h i j k l m n")
	for name, c := range map[string]struct {
		pods, refused []string
		fault         string
	}{
		"one of three": {pods: many[:3], refused: many[1:2]},
		"one of two":   {pods: many[:2], refused: many[:1], fault: "1 of 2 pods are refused with it: the agent's log has the proxy's words"},
		"two of three": {pods: many[:3], refused: many[1:3], fault: "2 of 3 pods are refused with it"},
		"the only one": {pods: many[:1], refused: many[:1], fault: `it refuses the files: ?[31mcannot use "# ns-a refused`},
		"all of many":  {pods: many, refused: many, fault: "14 of 14 pods are refused with it"},
	} {
		h, pods := newByHand(t, c.pods...)
		text := configTemplate
		for _, bad := range c.refused {
			text += fmt.Sprintf("{{ range .Pods }}{{ if eq .Name %q }}# {{ .NetNS }} refused\n{{ end }}{{ end }}", bad)
		}
		h.template(text)
		h.rounds(1)
		if c.fault == "" {
			h.wantServed("a", "c")
			if s := h.status(pods[1]); s.State != v1alpha1.Refused || !strings.Contains(s.Failure, "ns-b refused") || h.g.bad.hash != "" {
				t.Errorf("%s: said is %+v, noted %+v", name, s, h.g.bad)
			}
			continue
		}
		h.wantServed(c.pods...)
		for _, s := range pods {
			if got := h.status(s); !got.Ready || !strings.Contains(got.Failure, c.fault) || h.g.bad.hash == "" {
				t.Errorf("%s: said is %+v, noted %+v", name, got, h.g.bad)
			}
		}
	}
}

// Many pods that are refused use up the checks of a round, and not those of the next one for who is not.
func TestAccept_manyRefused_othersJoinNext(t *testing.T) {
	t.Parallel()
	h, _ := newByHand(t, "a")
	for i := range 2 * maxAlone {
		s := h.pod(fmt.Sprintf("b%d", i), func(p *fakePod) { p.annotations = map[string]string{"note": "refused"} })
		h.g.follow(s, true)
		h.g.pauses.of(s.UID).refused = backoff{times: 9, until: time.Now()} // the next one is long
	}
	if n := h.rounds(1); n > maxAlone+2 {
		t.Errorf("%d checks", n)
	}
	h.join("c") // which was refused least
	h.rounds(1)
	h.wantServed("a", "c")
}

// Pods that are fine alone and refused together are tried half by half.
func TestAccept_refusedTogether_triesFewer(t *testing.T) {
	t.Parallel()
	h, _ := newByHand(t, "a")
	h.template(configTemplate + "{{ if gt (len .Pods) 3 }}refused\n{{ end }}")
	h.rounds(1)
	h.join("b", "c", "d", "e")
	h.rounds(5)
	if n := len(strings.Fields(h.serves())); n != 3 {
		t.Errorf("served are %s", h.serves())
	}
}

// What the proxy says of files with several pods may be about any of them: no pod's owner reads it.
func TestAccept_refusedBesideOthers_keepsTheWords(t *testing.T) {
	t.Parallel()
	h, _ := newByHand(t, "a")
	h.template(configTemplate + "{{ if gt (len .Pods) 1 }}{{ range .Pods }}# {{ .NetNS }} refused\n{{ end }}{{ end }}")
	h.rounds(1)
	b := h.join("b")[0]
	h.rounds(1)
	if s := h.status(b); s.State != v1alpha1.Refused || strings.Contains(s.Message, "ns-a") || !strings.Contains(s.Message, "the agent's log has its words") {
		t.Errorf("said is %+v", s)
	}
	h.wantServed("a")
}

// A version is refused with the only pod that is served. Who waits for it does not read the words about that pod.
func TestAccept_versionRefusesTheServedPod_keepsTheWords(t *testing.T) {
	t.Parallel()
	h, _ := newByHand(t, "a")
	h.template(configTemplate + "{{ range .Pods }}# {{ .NetNS }} refused\n{{ end }}")
	b := h.join("b")[0]
	h.rounds(1)
	if s := h.status(b); s.State != v1alpha1.Failed || strings.Contains(s.Message, "ns-a") || !strings.Contains(s.Message, "1 of 1 pods are refused with it") {
		t.Errorf("said is %+v", s)
	}
}

// A network namespace that is gone when the proxy looks for it is nobody's fault, also not of who joins at the same time.
func TestAccept_namespaceVanishes_dropsThePod(t *testing.T) {
	t.Parallel()
	h, _ := newByHand(t, "a")
	pods := h.join("b", "c")
	h.change(func() {
		h.checking = func(context.Context) error {
			h.edit(pods[0], func(p *fakePod) { p.unnamed = true })
			return nil
		}
	})
	next, err := h.round(t.Context())
	if err != nil || next > 0 || h.status(pods[0]).Failure+h.status(pods[1]).Failure != "" {
		t.Errorf("error %v, next round in %s; said is %+v and %+v", err, next, h.status(pods[0]), h.status(pods[1]))
	}
	h.rounds(1)
	h.wantServed("a", "c")
}

// A proxy that does not answer for long gets a configuration from which all goes on, with those whom the last one had, or with those of them
// that it accepts.
func TestAccept_nothingInForce_blamesEachPod(t *testing.T) {
	t.Parallel()
	for bad, names := range map[string][]string{"b": {"a", "b", "c"}, "a": {"a"}} {
		h, pods := newByHand(t, names...)
		h.template(configTemplate + fmt.Sprintf("{{ range .Pods }}{{ if eq .Name %q }}# {{ .NetNS }} refused\n{{ end }}{{ end }}", bad))
		h.change(func() {
			h.mute = true
			h.telling = func(context.Context) error { h.change(func() { h.mute = false }); return nil }
		})
		h.g.proxy.silent = time.Now().Add(-startLimit)
		h.rounds(1)
		if len(names) == 1 {
			h.wantServed("a")
			if !strings.Contains(h.g.told, "ns-a refused") {
				t.Errorf("told %q", h.g.told)
			}
			continue
		}
		h.wantServed("a", "c")
		if s := h.status(pods[1]); s.State != v1alpha1.Refused || !strings.Contains(s.Failure, "ns-b refused") {
			t.Errorf("said is %+v", s)
		}
	}
}
