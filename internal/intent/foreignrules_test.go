package intent

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

func TestForeignRules_namespaceThenFlag_neverThePod(t *testing.T) {
	for name, c := range map[string]struct {
		pod, namespace, flag string
		want                 string
		source, err, note    string
	}{
		"nobody":                          {want: "fail", source: "default"},
		"the flag":                        {flag: "warn", want: "warn", source: "flag of the agent: --foreign-rules"},
		"the namespace":                   {namespace: "warn", want: "warn", source: "annotation of the namespace: " + KeyForeignRules},
		"the namespace, against the flag": {namespace: "fail", flag: "warn", want: "fail", source: "annotation of the namespace: " + KeyForeignRules},
		"the pod":                         {pod: "warn", want: "fail", source: "default", note: KeyForeignRules + " of the pod has no effect"},
		"the pod, against its namespace":  {pod: "fail", namespace: "warn", want: "warn", source: "annotation of the namespace: " + KeyForeignRules, note: "no effect"},
		"a wrong value of the namespace":  {namespace: "ok", err: "annotation " + KeyForeignRules + ` of namespace shop: value "ok": want fail or warn`},
		"an empty value of the namespace": {namespace: " ", err: `value " ": want fail or warn`},
		"a wrong value of the flag":       {flag: "ok", err: `--foreign-rules: value "ok": want fail or warn`},
		"a wrong value of the pod":        {pod: "ok", want: "fail", source: "default", note: "no effect"},
	} {
		pod, ns := asking(func(p *corev1.Pod) { p.Annotations = given(KeyForeignRules, c.pod) })
		ns.Annotations = given(KeyForeignRules, c.namespace)
		pod.Annotations[KeyInitialize] = "true"
		config := Config{Select: SelectAnnotation, Defaults: StandardDefaults()}
		if c.flag != "" {
			config.Defaults[SettingForeignRules] = c.flag
		}
		got, err := Explain(pod, ns, config)
		accepts := AcceptsForeignRules(ns, config.Defaults)
		if c.err != "" {
			wantError(t, name, c.err, err)
			if c.flag != "" {
				wantError(t, name, c.err, config.Defaults.Validate())
			}
		} else if setting := sourceOf(t, got, SettingForeignRules); err != nil || setting.Value != c.want || setting.Source != c.source {
			t.Errorf("%s: %+v, error %v", name, setting, err)
		}
		notes := strings.Join(got.Notes, "; ")
		if accepts != (c.want == "warn") || !strings.Contains(notes, c.note) || (notes == "") != (c.note == "") {
			t.Errorf("%s: accepts %t, notes %q, want %q", name, accepts, notes, c.note)
		}
	}
}

func wantError(t *testing.T, name, want string, err error) {
	t.Helper()
	if err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("%s: error %v, want %s", name, err, want)
	}
}
