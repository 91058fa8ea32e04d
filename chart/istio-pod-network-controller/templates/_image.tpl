{{- /*
The agent's image. Its tag and its digest may be in image.repository or in image.tag. A digest is taken in place of a tag.
*/ -}}
{{- define "agent.image" -}}
{{- $v := .Values.image -}}
{{- $named := include "agent.reference" (list "image.repository" $v.repository) | fromJson -}}
{{- $given := include "agent.tag" (list "image.tag" $v.tag) | fromJson -}}
{{- $digests := list $named.digest $given.digest | compact | uniq -}}
{{- if gt (len $digests) 1 -}}
{{- fail (printf "image.repository and image.tag name different digests: %s; set one of them" (join " and " $digests)) -}}
{{- end -}}
{{- if and $named.tag $given.tag -}}
{{- fail (printf "image.repository=%s has a tag, and image.tag=%s is another value for it: set one of them" $v.repository $v.tag) -}}
{{- end -}}
{{- $variant := ternary "-iptables" "" (eq .Values.redirection.backend "iptables") -}}
{{- $tag := $named.tag | default $given.tag | default (print .Chart.AppVersion $variant) -}}
{{- with first (append $digests "") }}{{ printf "%s@%s" $named.name . }}{{ else }}{{ printf "%s:%s" $named.name $tag }}{{ end -}}
{{- end -}}

{{- /* An image that one value names as a whole: (list KEY VALUE). */ -}}
{{- define "agent.wholeImage" -}}
{{- $named := include "agent.reference" . | fromJson -}}
{{- $named.name -}}
{{- with $named.tag }}:{{ . }}{{ end -}}
{{- with $named.digest }}@{{ . }}{{ end -}}
{{- end -}}

{{- /* The parts of an image's reference, as JSON: (list KEY VALUE). One that no runtime can read is refused here, not on the nodes. */ -}}
{{- define "agent.reference" -}}
{{- $key := first . -}}
{{- $text := last . | toString -}}
{{- $says := printf "%s=%s" $key $text -}}
{{- if not (trim $text) }}{{ fail (printf "%s is blank: name an image, such as registry.example.com/mesh/agent" $key) }}{{ end -}}
{{- if regexMatch "\\s" $text }}{{ fail (printf "%s=%q has a space, which no image's name has" $key $text) }}{{ end -}}
{{- if contains "://" $text }}{{ fail (printf "%s: an image has no scheme; leave %s out" $says (regexFind "^.*?://" $text)) }}{{ end -}}
{{- $behind := regexFind "(:[^/@]*)?(@.*)?$" $text -}}
{{- $name := eq $behind ":" | ternary $text (trimSuffix $behind $text) -}}
{{- $parts := include "agent.tag" (list $key (trimPrefix ":" $behind) $text) | fromJson -}}
{{- $host := regexFind "^([^/]*[.:][^/]*|localhost)/" $name -}}
{{- $path := trimPrefix $host $name -}}
{{- if regexMatch "[A-Z]" $path }}{{ fail (printf "%s: %s has upper case, which the name of an image must not have" $says $path) }}{{ end -}}
{{- $isHost := "^([a-zA-Z0-9]([-a-zA-Z0-9]*[a-zA-Z0-9])?([.][a-zA-Z0-9]([-a-zA-Z0-9]*[a-zA-Z0-9])?)*|\\[[0-9a-fA-F:.]+\\])(:[0-9]+)?/$" -}}
{{- $isPath := "^[a-z0-9]+(([.]|_|__|-+)[a-z0-9]+)*(/[a-z0-9]+(([.]|_|__|-+)[a-z0-9]+)*)*$" -}}
{{- if or (not (regexMatch $isPath $path)) (and $host (not (regexMatch $isHost $host))) -}}
{{- fail (printf "%s is no image's name, such as registry.example.com/mesh/agent" $says) -}}
{{- end -}}
{{- merge (dict "name" $name) $parts | toJson -}}
{{- end -}}

{{- /* A tag, a digest, or both with an @ between them, as JSON: (list KEY TEXT), and in a longer value (list KEY TEXT VALUE). */ -}}
{{- define "agent.tag" -}}
{{- $key := first . -}}
{{- $text := index . 1 | default "" | toString -}}
{{- $says := printf "%s=%s" $key (last . | default "" | toString) -}}
{{- $tag := regexReplaceAll "@.*$" $text "" -}}
{{- $digest := regexFind "@.*$" $text | trimPrefix "@" -}}
{{- if and (hasPrefix "sha256:" $tag) (not $digest) }}{{ $digest = $tag }}{{ $tag = "" }}{{ end -}}
{{- if and (or $digest (contains "@" $text)) (not (regexMatch "^sha256:[0-9a-f]{64}$" $digest)) -}}
{{- fail (printf "%s: a digest is sha256: and 64 hexadecimal digits in lower case" $says) -}}
{{- end -}}
{{- if and $tag (not (regexMatch "^[A-Za-z0-9_][-A-Za-z0-9_.]{0,127}$" $tag)) -}}
{{- fail (printf "%s: %q is no tag, which has letters, digits, _ . and -, 128 of them at most" $says $tag) -}}
{{- end -}}
{{- dict "tag" $tag "digest" $digest | toJson -}}
{{- end -}}
