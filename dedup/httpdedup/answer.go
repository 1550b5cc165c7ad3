package httpdedup

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/textproto"
	"slices"
	"strconv"
	"strings"
)

// Answer is a handler's response. What is stored of it is its binary form, which is
// also what dedup.CompletedBytes takes to settle an unknown outcome by hand.
type Answer struct {
	Status  int         // 200 to 999
	Header  http.Header //
	Body    []byte      //
	Omitted int         // bytes of a body that was too large to be kept; 0: it is all there
}

// The format: a line, header lines, an empty line and the body.
//
//	zklock-http/1 201
//	Content-Type: application/json
//
//	{"receipt":…}
//
// so that people can read it. The number is raised when an older build could misread
// an answer. Words that follow the status are name=value, and unknown ones are skipped.
const (
	answerMagic  = "zklock-http/"
	answerFormat = 1
)

// MarshalBinary encodes the answer. Headers that are never replayed are left out.
func (a *Answer) MarshalBinary() ([]byte, error) {
	if a.Status < http.StatusOK || a.Status > 999 {
		return nil, fmt.Errorf("httpdedup: the status %d is not in 200 to 999", a.Status)
	}
	var b bytes.Buffer
	fmt.Fprintf(&b, "%s%d %d", answerMagic, answerFormat, a.Status)
	if a.Omitted > 0 {
		fmt.Fprintf(&b, " omitted=%d", a.Omitted)
	}
	b.WriteByte('\n')
	for _, name := range slices.Sorted(maps.Keys(a.Header)) {
		if !validToken(name) {
			return nil, fmt.Errorf("httpdedup: %q is no name of a header", name)
		}
		if slices.Contains(neverReplayed, textproto.CanonicalMIMEHeaderKey(name)) {
			continue
		}
		for _, v := range a.Header[name] {
			b.WriteString(name + ": " + oneLine.Replace(v) + "\n")
		}
	}
	b.WriteByte('\n')
	b.Write(a.Body)
	return b.Bytes(), nil
}

// oneLine does to the value of a header what net/http does when it sends it.
var oneLine = strings.NewReplacer("\n", " ", "\r", " ")

// ParseAnswer decodes an answer. The body is a part of data.
func ParseAnswer(data []byte) (*Answer, error) {
	line, rest, ok := bytes.Cut(data, []byte("\n"))
	words := strings.Split(string(line), " ")
	number, found := strings.CutPrefix(words[0], answerMagic)
	if !ok || !found || len(words) < 2 {
		return nil, errors.New("httpdedup: the outcome is no HTTP answer")
	}
	n, err := strconv.ParseUint(number, 10, 32)
	switch {
	case err != nil || n == 0:
		return nil, fmt.Errorf("httpdedup: the format of the answer is %.20q, which is no number", number)
	case n > answerFormat:
		return nil, fmt.Errorf("httpdedup: the answer has format %d, this build reads up to %d", n, answerFormat)
	}
	a := &Answer{Header: make(http.Header)}
	if a.Status, err = strconv.Atoi(words[1]); err != nil || a.Status < http.StatusOK || a.Status > 999 {
		return nil, fmt.Errorf("httpdedup: the status of the answer is %.20q", words[1])
	}
	for _, word := range words[2:] {
		if v, ok := strings.CutPrefix(word, "omitted="); ok {
			if a.Omitted, err = strconv.Atoi(v); err != nil || a.Omitted < 0 {
				return nil, fmt.Errorf("httpdedup: the answer lacks %.20q bytes", v)
			}
		}
	}
	for {
		if line, rest, ok = bytes.Cut(rest, []byte("\n")); !ok {
			return nil, errors.New("httpdedup: the headers of the answer do not end")
		}
		if len(line) == 0 {
			break
		}
		name, value, ok := strings.Cut(string(line), ": ")
		if !ok || !validToken(name) {
			return nil, fmt.Errorf("httpdedup: %.40q is no header", line)
		}
		if name = textproto.CanonicalMIMEHeaderKey(name); !slices.Contains(neverReplayed, name) {
			a.Header[name] = append(a.Header[name], value)
		}
	}
	a.Body = rest
	return a, nil
}

// kept is what is stored of an answer.
func (a *Answer) kept(headers []string, most int) *Answer {
	k := &Answer{Status: a.Status, Header: make(http.Header), Body: a.Body, Omitted: a.Omitted}
	for _, name := range headers {
		if v := a.Header[name]; len(v) > 0 {
			k.Header[name] = v
		}
	}
	if len(k.Body) > most {
		k.Body, k.Omitted = nil, len(a.Body)
	}
	return k
}

// send writes the answer. Headers that are set on w already stay, unless the answer
// has them.
func (a *Answer) send(w http.ResponseWriter) {
	maps.Copy(w.Header(), a.Header)
	if bodyAllowed(a.Status) {
		w.Header().Set("Content-Length", strconv.Itoa(len(a.Body)))
	} else {
		w.Header().Del("Content-Length")
	}
	w.WriteHeader(a.Status)
	if len(a.Body) > 0 {
		_, _ = w.Write(a.Body) // a client that is gone comes back for it
	}
}

// bodyAllowed is what RFC 9110 says of a status.
func bodyAllowed(status int) bool {
	return status >= http.StatusOK && status != http.StatusNoContent && status != http.StatusNotModified
}
