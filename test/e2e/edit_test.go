package e2e

import "testing"

// nat rules decide once a connection: a new rule set must be there for the next one and leave those that are open alone.
//
//e2e:rounds core nftables iptables
func TestEditsOfARunningPodAreFollowedInPlace(t *testing.T) {
	t.Parallel()
	s := newSpace(t, asked())
	pod := s.startMesh(t, meshPod("edited", nil))
	f := families()[0]
	wantInbound(t, pod, f, appOtherPort, true)
	established := dialEcho(t, at(pod, f, appTCPPort))
	if !established.proxied {
		t.Error("the connection did not pass the proxy")
	}

	before := readDetails(t, pod)
	s.annotate(t, pod.Name, map[string]any{keyExcludeInbound: "9100,9000", keyExcludeCIDRs: "203.0.113.128/25"})
	pod = s.await(t, pod.Name, hasOtherHash(before.SpecHash))
	if after := readDetails(t, pod); after.Sandbox != before.Sandbox {
		t.Errorf("the sandbox is %s, was %s", after.Sandbox, before.Sandbox)
	}
	wantInbound(t, pod, f, appPort, true)
	wantInbound(t, pod, f, appOtherPort, false)
	s.wantOutbound(t, pod, f.at(1, worldPort), true)
	s.wantOutbound(t, pod, f.at(128, worldPort), false)
	established.say(t, "after the port was excluded")
	if again := dialEcho(t, at(pod, f, appTCPPort)); again.proxied {
		t.Error("a new connection to an excluded port passed the proxy")
	}

	s.annotate(t, pod.Name, map[string]any{keyExcludeInbound: nil, keyExcludeCIDRs: nil})
	pod = s.await(t, pod.Name, hasOtherHash(readDetails(t, pod).SpecHash))
	if got := readDetails(t, pod).SpecHash; got != before.SpecHash {
		t.Errorf("the rules are of %s, want those of %s again", got, before.SpecHash)
	}
	wantInbound(t, pod, f, appOtherPort, true)
	s.wantOutbound(t, pod, f.at(129, worldPort), true)
	established.say(t, "after it was included again")
}
