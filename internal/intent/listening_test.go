package intent

import (
	"maps"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

func TestOf_inboundPorts_podThenNamespaceThenProfileThenFlag(t *testing.T) {
	const listening, all = "listening", "all"
	for name, c := range map[string]struct {
		pod, namespace, profile, flag string
		managed                       bool
		want                          bool
		wantSource, wantErr           string
	}{
		"nobody":                               {wantSource: "default"},
		"the pod":                              {pod: listening, want: true, wantSource: "annotation of the pod: " + KeyInboundPorts},
		"the namespace":                        {namespace: listening, want: true, wantSource: "annotation of the namespace: " + KeyInboundPorts},
		"the pod, against its namespace":       {pod: all, namespace: listening, wantSource: "annotation of the pod: " + KeyInboundPorts},
		"the flag":                             {flag: listening, want: true, wantSource: "flag of the agent: --inbound-ports"},
		"the namespace, against the flag":      {namespace: all, flag: listening, wantSource: "annotation of the namespace: " + KeyInboundPorts},
		"the profile":                          {managed: true, profile: listening, want: true, wantSource: "ProxyProfile edge"},
		"the profile, against the flag":        {managed: true, profile: all, flag: listening, wantSource: "ProxyProfile edge"},
		"the namespace, against the profile":   {managed: true, namespace: all, profile: listening, wantSource: "annotation of the namespace: " + KeyInboundPorts},
		"the pod, against the profile":         {managed: true, pod: listening, profile: all, want: true, wantSource: "annotation of the pod: " + KeyInboundPorts},
		"a profile that says nothing":          {managed: true, flag: listening, want: true, wantSource: "flag of the agent: --inbound-ports"},
		"a wrong value of the pod":             {pod: "yes", wantErr: KeyInboundPorts + `: value "yes": want all or listening`},
		"a wrong value of the namespace":       {namespace: "80", wantErr: "annotation " + KeyInboundPorts + ` of namespace shop: value "80": want all or listening`},
		"a wrong value that does not count":    {pod: listening, namespace: "80", want: true, wantSource: "annotation of the pod: " + KeyInboundPorts},
		"an empty value":                       {pod: " ", wantErr: `value " "`},
		"an empty value of the namespace, too": {namespace: " ", wantErr: `value " "`},
	} {
		t.Run(name, func(t *testing.T) {
			pod, ns := asking(func(p *corev1.Pod) { p.Annotations = given(KeyInboundPorts, c.pod) })
			config := Config{Select: SelectAnnotation, Defaults: StandardDefaults()}
			if c.managed {
				config = managing(ManagedProxy{Owner: Owner{UID: 7000}, OutboundPort: 7001, InboundPort: 7002, InboundPorts: c.profile})
				pod.Annotations[KeySidecar] = "edge"
			}
			if c.flag != "" {
				config.Defaults[settingInboundPorts] = c.flag
			}
			maps.Copy(ns.Annotations, given(KeyInboundPorts, c.namespace))
			got, err := Explain(pod, ns, config)
			if c.wantErr != "" {
				if err == nil || !strings.Contains(err.Error(), c.wantErr) {
					t.Errorf("error %v, want %s", err, c.wantErr)
				}
				return
			}
			if err != nil || got.Spec.IncludeInboundPorts.Listening != c.want || sourceOf(t, got, settingInboundPorts).Source != c.wantSource {
				t.Errorf("listening %t from %q, error %v", got.Spec.IncludeInboundPorts.Listening, sourceOf(t, got, settingInboundPorts).Source, err)
			}
		})
	}
}

// given returns annotations with the key unless the value is empty.
func given(key, value string) map[string]string {
	if value == "" {
		return map[string]string{}
	}
	return map[string]string{key: value}
}

func TestDefaults_wrongInboundPorts_areNamed(t *testing.T) {
	d := StandardDefaults()
	d[settingInboundPorts] = "some"
	if err := d.Validate(); err == nil || !strings.Contains(err.Error(), `--inbound-ports: value "some": want all or listening`) {
		t.Errorf("error %v", err)
	}
}
