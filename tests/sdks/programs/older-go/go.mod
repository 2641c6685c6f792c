module example.com/shop

go 1.19

require github.com/posthog/posthog-go v1.2.24
